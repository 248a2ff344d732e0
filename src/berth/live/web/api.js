// Asks the controller. Every answer that is not one becomes an error with the controller's own sentence.

import {token} from "./token.js";

export class Refused extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

export const headers = () => ({Authorization: `Bearer ${token()}`});

async function answered(response) {
  if (response.ok) return response;
  let told = `status ${response.status}`;
  try {
    const body = await response.json(), detail = body.detail;
    told = Array.isArray(detail) ? detail.map((one) => one.msg).join("; ") : String(detail || told);
    if (body.hint) told += ` (${body.hint})`;
  } catch { /* the status says enough */ }
  throw new Refused(response.status, told);
}

const address = (path) => `/api/v1/${path}`;

export async function get(path) {
  return (await answered(await fetch(address(path), {headers: headers(), cache: "no-store"}))).json();
}

export async function post(path, body = {}) {
  const options = {method: "POST", headers: {...headers(), "Content-Type": "application/json"}, body: JSON.stringify(body)};
  return (await answered(await fetch(address(path), options))).json();
}

export async function getText(path) {
  const response = await answered(await fetch(address(path), {headers: headers(), cache: "no-store"}));
  return [await response.text(), Number(response.headers.get("x-next-offset") || 0)];
}

export async function open(path, extra, signal) {
  return answered(await fetch(address(path), {headers: {...headers(), ...extra}, cache: "no-store", signal}));
}
