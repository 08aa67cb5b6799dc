package sim

import "time"

// report is what a run came to.
type report struct {
	seed       uint64
	violations []violation
	notes      string

	checks, allows, changes, faults, installs int
	took                                      time.Duration // of simulated time
}

// profile is a scenario with a name, and how many clients use the cluster meanwhile.
type profile struct {
	name    string
	play    scenario
	clients int
}

// The profiles. Directed ones make likely what faults by chance seldom bring about.
var (
	profileMixed    = profile{"mixed", mixed, 4}
	profileDeposed  = profile{"deposed-quietly", deposedQuietly, 2}
	profileRewound  = profile{"rewound", rewound, 1}
	profileInstall  = profile{"conflicting-install", conflictingInstall, 0}
	profileVote     = profile{"half-vote", halfVote, 2}
	profileSlow     = profile{"slow-machine", slowMachine, 4}
	profileStuck    = profile{"stuck-disk", stuckDisk, 4}
	profileFailing  = profile{"failing-disks", failingDisks, 4}
	profileTransfer = profile{"interrupted-transfers", interruptedTransfers, 2}
	profileLate     = profile{"late-machine", lateMachine, 0}
	profileFlips    = profile{"flipped-bits", flippedBits, 2}
	profileFlipped  = profile{"flipped-under-way", flippedUnderWay, 0}
	profileLost     = profile{"lost-writes", lostWrites, 1}
	profileCut      = profile{"cut-log", cutLog, 0}
	profileBlank    = profile{"blank-disk", blankDisk, 0}
	profileWrong    = profile{"wrong-state", wrongState, 3}
	profilePolicy   = profile{"unconfirmed", unconfirmed, 4}
	profileEarly    = profile{"early-answers", earlyAnswers, 2}
	profileHeld     = profile{"held-batches", heldBatches, 1}
	profileRestart  = profile{"restarted-whole", restartedWhole, 2}
	profileSent     = profile{"sent-snapshot", sentSnapshot, 2}

	directed = []profile{
		profileDeposed, profileRewound, profileInstall, profileVote, profileSlow, profileStuck, profileFailing,
		profileTransfer, profileLate, profileFlips, profileFlipped, profileLost, profileCut, profileBlank, profileWrong,
		profilePolicy, profileEarly, profileHeld, profileRestart, profileSent,
	}
)

// choose is the profile of a seed: mostly the mixture.
func choose(seed uint64) profile {
	if seed%4 != 0 {
		return profileMixed
	}
	return directed[seed/4%uint64(len(directed))]
}

// run is one seed, from the start of the nodes to the end of the last goroutine. It is called in a bubble.
func run(seed uint64, verbose bool, f profile) report {
	c, err := newCluster(seed, verbose)
	if err != nil {
		return report{seed: seed, violations: []violation{{bubbleHolds, err.Error()}}}
	}
	c.operators.Go(c.operate)
	c.operators.Go(c.administer)
	if c.mustLead() == nil {
		c.history.violate(liveHolds, "there is no leader at the start: %s", c.standing())
	} else {
		c.until(patience, c.whole)
		c.serve(f.clients)
		c.note("profile %s", f.name)
		f.play(c)
	}
	c.heal()
	c.mustLive()
	close(c.quiet)
	c.clients.Wait()
	c.finish()
	c.history.check(simLimits)
	h := c.history
	return report{
		seed: seed, violations: h.violations(), notes: c.told(),
		checks: h.checks, allows: h.allows, changes: h.changes, faults: h.faults, installs: h.installs,
		took: time.Since(c.begun),
	}
}
