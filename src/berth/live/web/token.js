// The token: taken from the address once and wiped from there, or asked for; kept for this tab only.

const KEY = "berth.token";

export function takeFromAddress() {
  const found = /^#token=([A-Za-z0-9_-]+)$/.exec(location.hash);
  if (!found) return;
  sessionStorage.setItem(KEY, found[1]);
  history.replaceState(null, "", location.pathname + "#/");
}

export const token = () => sessionStorage.getItem(KEY) || "";
export const keep = (value) => sessionStorage.setItem(KEY, value.trim());
export const forget = () => sessionStorage.removeItem(KEY);
