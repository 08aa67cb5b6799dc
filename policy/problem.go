package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// MaxProblems bounds the problems of one answer. How many more there are is said in one line more.
const MaxProblems = 100

// Problem is one thing that is wrong with a policy, and what to do about it.
type Problem struct {
	// File is the name that the text was given; empty for a policy that was not read from text.
	File string
	// Line and Column count from 1, columns in characters. Line 0 is no position.
	Line, Column int
	Message      string
}

// String is the problem in one line, as file:line:column: message.
func (p Problem) String() string {
	var b strings.Builder
	if p.File != "" {
		b.WriteString(p.File + ":")
	}
	if p.Line > 0 {
		b.WriteString(strconv.Itoa(p.Line) + ":" + strconv.Itoa(p.Column) + ":")
	}
	if b.Len() > 0 {
		b.WriteByte(' ')
	}
	b.WriteString(p.Message)
	return b.String()
}

// Problems is all that is wrong with a policy, in the order of position, as an error.
type Problems []Problem

// Error has one line for each problem.
func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// collector gathers problems and keeps the first MaxProblems by position.
type collector struct {
	file  string
	kept  []Problem
	total int
}

func (c *collector) add(line, column int, format string, args ...any) {
	c.total++
	c.kept = append(c.kept, Problem{c.file, line, column, fmt.Sprintf(format, args...)})
	if len(c.kept) >= 4*MaxProblems {
		c.cut()
	}
}

// plenty reports whether there are more problems than will be told, so that details of further
// ones need no effort.
func (c *collector) plenty() bool { return c.total > MaxProblems }

func (c *collector) cut() {
	slices.SortStableFunc(c.kept, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	if len(c.kept) > MaxProblems {
		c.kept = c.kept[:MaxProblems]
	}
}

// err is nil when nothing was added.
func (c *collector) err() error {
	if c.total == 0 {
		return nil
	}
	c.cut()
	all := slices.Clone(c.kept)
	if more := c.total - len(all); more > 0 {
		all = append(all, Problem{File: c.file, Message: fmt.Sprintf("and %d more", more)})
	}
	return Problems(all)
}
