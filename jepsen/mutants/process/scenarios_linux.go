//go:build chaos

package process

import (
	"testing"

	"github.com/quorate/quorate/internal/guard"
	"github.com/quorate/quorate/jepsen/mutants"
)

// Scenarios are the scenarios of real processes by name.
var Scenarios = map[string]mutants.Scenario{
	"power-cut":        played("power-cut", (*stage).powerCut),
	"disk-error":       played("disk-error", (*stage).diskError),
	"cut-leader":       played("cut-leader", (*stage).cutLeader),
	"moves-under-load": played("moves-under-load", (*stage).movesUnderLoad),
	"wall-ahead":       played("wall-ahead", (*stage).wallAhead),
	"held-replies":     played("held-replies", (*stage).heldReplies),
	"lost-answers":     played("lost-answers", (*stage).lostAnswers),
	"cut-follower":     played("cut-follower", (*stage).cutFollower),
	"longer-up":        played("longer-up", (*stage).longerUp),
	"restart-of-all":   played("restart-of-all", (*stage).restartOfAll),
}

// played is a scenario on a stage of its own.
func played(name string, play func(s *stage)) mutants.Scenario {
	return func(t *testing.T, off guard.Guard, seed uint64) []mutants.Finding {
		t.Helper()
		s := newStage(t, off, name, seed)
		play(s)
		return append(s.found, s.judge()...)
	}
}
