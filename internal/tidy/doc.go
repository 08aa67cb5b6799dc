// Package tidy holds the tree to rules that no linter has: which folder may import which, what every
// package and test must say about itself, how long a file may grow, what no file may mention.
//
// The rules are tests. Each is a function over a file system that returns its findings, run once over
// the tree, where it must find nothing, and once over a small bad tree, where it must find what was
// put there: a rule that cannot fail is a defect of its own.
//
// The package holds no code for others and does not look at generated files, except for their
// imports.
package tidy
