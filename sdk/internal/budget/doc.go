// Package budget bounds retries: to a share of the first sends and some per second in addition.
//
// Guarantees: of n first sends in s seconds at most burst + n·ratio + s·min retries follow, where burst, what can be
// saved up, is ten seconds of min, or one retry if that is less. Nothing is allocated or waited for.
//
// There is one budget per node, so that a node in trouble is not asked more, and its trouble is not another's.
package budget
