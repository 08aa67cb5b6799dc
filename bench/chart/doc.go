// Package chart draws the two pictures of a measurement as SVG: lines of a value, on a logarithmic scale, against a
// load; and bars of one value for several subjects.
//
// A picture is one self-contained file: no script, no font and nothing fetched. Whoever reads it on a dark page still
// sees it, for it has a background. Text is escaped.
//
// It draws what it is given and computes nothing. Values that no logarithm has are left out of a line.
package chart
