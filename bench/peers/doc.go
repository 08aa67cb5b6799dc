// Command peers measures Quorate beside what is used in its place: Redis with an exact rolling log in a script, etcd
// with the same by compare-and-set, and Gubernator. All is started on this machine, on loopback, with files in one
// directory; rounds alternate, so that what else the machine does meets all alike; medians and ratios are written as
// a table, a picture and JSON.
//
// One generator puts the same load on each: a closed loop of so many checks under way, over the same principals,
// with the same limit. Each peer gets the client that suits it: pipelines for Redis, transactions that carry what
// the client knows for etcd, batches for Gubernator. Before each measurement a principal is asked past its limit, so
// that what does not enforce it is not measured.
//
// # What it does not do
//
// It is a module of its own, and the product links nothing of it. It installs nothing: a peer whose program is
// missing is left out, and the result says so. It makes the peers no equals: the table says what each does not
// promise.
package main
