// @ts-check
// The address of the page: the view, its filter, and the moment that is shown (#/jobs?show=failed&at=1763450000).

export const hashOf = () => location.hash.split("?")[0] || "#/";

export const queryOf = () => new URLSearchParams(location.hash.split("?")[1] || "");

// The moment in the address; null: none, so the page shows now.
export function atOf() {
  const text = queryOf().get("at"), at = Number(text);
  return text !== null && text !== "" && isFinite(at) ? at : null;
}

// Writes the moment that is shown into the address, so that it can be sent to others and survives a reload.
export function keepMoment(app) {
  const query = queryOf();
  if (app.at === null) query.delete("at");
  else query.set("at", String(app.at)); // exact: a record of that very moment belongs to it
  const text = query.toString(), hash = hashOf() + (text ? `?${text}` : "");
  if (hash !== (location.hash || "#/")) history.replaceState(null, "", location.pathname + hash);
}
