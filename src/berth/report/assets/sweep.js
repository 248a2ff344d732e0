"use strict";
// The maps are plain tables; the data next to them is for other programs.
