package model

import "math/rand/v2"

// event is one kind of thing that happens.
type event int

const (
	evRequest event = iota
	evRound
	evWork
	evCommit
	evApply
	evNotice
	evElect
	evSnapshot
	evInstall
	evRestart
	evOutage
	evTrouble
	evPolicy
	evPlan
	evEdge
	numEvents
)

// Profile is how often what happens.
type Profile struct {
	Name    string
	weights [numEvents]int
}

func (p *Profile) draw(rng *rand.Rand) event {
	sum := 0
	for _, n := range p.weights {
		sum += n
	}
	at := rng.IntN(sum)
	for e, n := range p.weights {
		if at -= n; at < 0 {
			return event(e)
		}
	}
	return evRequest
}

// usual is a mixture of all.
var usual = [numEvents]int{
	evRequest: 96, evRound: 40, evWork: 64, evCommit: 48, evApply: 56, evNotice: 8, evElect: 8, evSnapshot: 6,
	evInstall: 3, evRestart: 1, evOutage: 1, evTrouble: 6, evPolicy: 8, evPlan: 32, evEdge: 8,
}

func with(name string, change map[event]int) Profile {
	p := Profile{Name: name, weights: usual}
	for e, n := range change {
		p.weights[e] = n
	}
	return p
}

// The profiles. The others make likely what the mixture seldom brings about.
var (
	Mixed    = Profile{"mixed", usual}
	Steady   = with("steady", map[event]int{evPlan: 0, evPolicy: 0, evRestart: 0, evOutage: 0, evTrouble: 0, evEdge: 30})
	Moving   = with("moving", map[event]int{evPlan: 120, evRound: 80})
	Leaders  = with("leaders", map[event]int{evElect: 32, evNotice: 24, evTrouble: 24, evPlan: 4, evPolicy: 4})
	Restarts = with("restarts", map[event]int{evRestart: 10, evOutage: 4, evSnapshot: 16, evInstall: 12, evPlan: 4})

	Policies = with("policies", map[event]int{evPolicy: 40, evRound: 80, evPlan: 4})

	// Profiles are all of them.
	Profiles = []Profile{Mixed, Steady, Moving, Leaders, Restarts, Policies}
)

// Choose is the profile of a seed.
func Choose(seed uint64) Profile { return Profiles[seed%uint64(len(Profiles))] }

// Named finds a profile.
func Named(name string) (Profile, bool) {
	for _, p := range Profiles {
		if p.Name == name {
			return p, true
		}
	}
	return Profile{}, false
}
