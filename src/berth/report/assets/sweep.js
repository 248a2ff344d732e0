"use strict";
// The maps are plain tables; the data beside them is for whoever wants to take it from the page.
