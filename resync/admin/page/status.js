"use strict";

const API = "_resync/admin/v1";
const REFRESH_MS = 2000;
const PAGE = 100;

const byId = (id) => document.getElementById(id);
const storage = window.sessionStorage;
let limit = PAGE;
let timer = 0;

async function request(method, path) {
  const response = await fetch(`${API}/${path}`, {
    method,
    headers: { Authorization: `Bearer ${storage.getItem("token")}` },
  });
  const body = await response.json();
  if (!response.ok) {
    const error = new Error(body.error);
    error.errcode = body.errcode;
    throw error;
  }
  return body;
}

function show(id, visible) {
  byId(id).hidden = !visible;
}

function report(message) {
  byId("problem").textContent = message;
  show("problem", message !== "");
}

function element(tag, className, text) {
  const node = document.createElement(tag);
  node.className = className;
  node.textContent = text;
  return node;
}

function when(timestamp) {
  const seconds = Math.round((timestamp - Date.now()) / 1000);
  if (seconds <= 0) return "now";
  if (seconds < 90) return `in ${seconds} s`;
  if (seconds < 5400) return `in ${Math.round(seconds / 60)} min`;
  return new Date(timestamp).toLocaleString();
}

function progressCell(room) {
  const cell = element("td", "progress", "");
  if (room.state === "complete") {
    const took = room.completed_ts && room.created_ts
      ? ` in ${((room.completed_ts - room.created_ts) / 1000).toFixed(1)} s` : "";
    cell.append(element("small", "", `fully stated${took}`));
    return cell;
  }
  const bar = document.createElement("progress");
  if (room.total > 0) {
    bar.max = room.total;
    bar.value = room.done;
  } else if (room.state !== "running") {
    bar.value = 0;
  }
  const counted = room.total > 0 ? ` ${room.done} of ${room.total}` : "";
  cell.append(bar, element("small", "", `${room.phase || "waiting"}${counted}`));
  return cell;
}

function row(room) {
  const line = document.createElement("tr");
  const name = element("td", "room", room.room_id);
  const via = room.joined_via ? `joined through ${room.joined_via}, ` : "";
  name.append(element("small", "",
    `${via}${room.partial_events} partial events, ${room.servers} servers`));
  const state = element("td", "", "");
  state.append(element("span", `state ${room.state}`, room.state));
  const complete = room.state === "complete";
  const next = room.state === "backoff" && room.next_attempt_ts ? when(room.next_attempt_ts) : "";
  const server = room.last_error_server ? `${room.last_error_server}: ` : "";
  const error = room.last_error && !complete ? server + room.last_error : "";
  const actions = element("td", "", "");
  if (room.state === "backoff") {
    const button = element("button", "", "Try now");
    button.type = "button";
    button.addEventListener("click", () => act("POST", room.room_id));
    actions.append(button);
  }
  line.append(name, state, progressCell(room), element("td", "error", error),
    element("td", "", next), actions);
  return line;
}

async function act(method, roomId) {
  try {
    await request(method, `rooms/${encodeURIComponent(roomId)}/resync`);
    await refresh();
  } catch (error) {
    report(error.message);
  }
}

async function loadRooms() {
  const rooms = [];
  let token = null;
  do {
    const from = token === null ? "" : `&from=${encodeURIComponent(token)}`;
    const page = await request("GET", `rooms?limit=${PAGE}${from}`);
    rooms.push(...page.rooms);
    token = page.next_token ?? null;
  } while (token !== null && rooms.length < limit);
  return { rooms, more: token !== null };
}

async function refresh() {
  window.clearTimeout(timer);
  if (storage.getItem("token") === null) {
    show("sign-in", true);
    show("sign-out", false);
    return;
  }
  try {
    const { rooms, more } = await loadRooms();
    report("");
    show("sign-in", false);
    show("sign-out", true);
    show("rooms", rooms.length > 0);
    show("empty", rooms.length === 0);
    show("more", more);
    byId("rooms").tBodies[0].replaceChildren(...rooms.map(row));
    const open = rooms.filter((room) => room.state !== "complete").length;
    byId("summary").textContent =
      `${rooms.length}${more ? "+" : ""} rooms, ${open} not yet fully stated`;
  } catch (error) {
    if (error.errcode === "M_UNKNOWN_TOKEN" || error.errcode === "M_MISSING_TOKEN") {
      signOut();
      report("That is not the admin token.");
      return;
    }
    report(error.errcode ? error.message : "The worker does not answer; trying again.");
  }
  timer = window.setTimeout(refresh, REFRESH_MS);
}

function signOut() {
  window.clearTimeout(timer);
  storage.removeItem("token");
  report("");
  byId("summary").textContent = "";
  for (const id of ["rooms", "empty", "more", "sign-out"]) show(id, false);
  show("sign-in", true);
  byId("token").focus();
}

byId("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  storage.setItem("token", byId("token").value.trim());
  byId("token").value = "";
  refresh();
});
byId("sign-out").addEventListener("click", signOut);
byId("more").addEventListener("click", () => {
  limit += PAGE;
  refresh();
});
refresh();
