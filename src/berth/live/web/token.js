// The token: taken from the address once and wiped from there, or asked for; kept for this tab only.
// An address has a code that works once (#code=), or a token (#token=).

const KEY = "berth.token";

export const bearsToken = () => /^#(token|code)=/.test(location.hash);

export async function takeFromAddress() {
  const found = /^#(token|code)=([A-Za-z0-9_-]+)$/.exec(location.hash);
  if (!found) return;
  history.replaceState(null, "", location.pathname + "#/");
  const value = found[1] === "token" ? found[2] : await tokenFor(found[2]);
  if (value) sessionStorage.setItem(KEY, value);
}

async function tokenFor(code) {
  const options = {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify({code})};
  const response = await fetch("/api/v1/login", options);
  return response.ok ? (await response.json()).token : "";
}

export const token = () => sessionStorage.getItem(KEY) || "";
export const keep = (value) => sessionStorage.setItem(KEY, value.trim());
export const forget = () => sessionStorage.removeItem(KEY);
