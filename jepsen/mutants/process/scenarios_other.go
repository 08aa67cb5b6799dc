//go:build chaos && !linux

package process

import "github.com/quorate/quorate/jepsen/mutants"

// Scenarios are none: real processes are started on Linux only.
var Scenarios = map[string]mutants.Scenario{}
