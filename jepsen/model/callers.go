package model

import (
	"strconv"

	"github.com/quorate/quorate/fsm"
)

// principals are those who ask. Their slots lie apart.
var principals = []string{"ada", "bob", "cid", "dot", "eve", "fay"}

// seed of the slot hash of all runs.
var slotSeed [16]byte

func slotOf(principal string) fsm.Slot { return fsm.SlotOf(slotSeed, principal) }

// principal is mostly one of two, so that limits are reached.
func (w *world) principal() string {
	if w.rng.IntN(3) > 0 {
		return principals[w.rng.IntN(2)]
	}
	return principals[w.rng.IntN(len(principals))]
}

// fresh is a check that nobody has asked for.
func (w *world) fresh() fsm.Check {
	w.ids++
	c := fsm.Check{
		Principal: w.principal(), Gateway: callerGateway, DecisionID: strconv.Itoa(w.ids), Charge: w.charge(),
	}
	if w.rng.IntN(8) == 0 {
		c.Also = []fsm.Charge{w.charge()}
	}
	if w.rng.IntN(12) == 0 {
		c.PolicyRevision = w.latest - min(w.latest-1, fsm.Revision(w.rng.IntN(2)))
	}
	return c
}

func (w *world) charge() fsm.Charge {
	c := fsm.Charge{Class: []string{"a", "a", "b", "b", "c", "x"}[w.rng.IntN(6)], Cost: 1}
	switch w.rng.IntN(12) {
	case 0, 1:
		c.Cost = 2
	case 2:
		c.Cost = 3
	case 3:
		c.Tier = "pro"
	}
	return c
}

func (w *world) peek() fsm.Peek {
	p := fsm.Peek{Principal: w.principal(), Class: w.charge().Class}
	p.RouteEpoch = w.newest(p.Principal).epoch
	return p
}

func (w *world) newest(principal string) assignment {
	all := w.routes[principal]
	return all[len(all)-1]
}

// ask sends checks to who decides, as the callers know it, or knew it.
func (w *world) ask() {
	if w.rng.IntN(200) == 0 {
		w.forgive()
	}
	for range 1 + w.rng.IntN(3) {
		var c fsm.Check
		switch x := w.rng.IntN(20); {
		case x < 4 && len(w.past) > 0:
			c = w.past[max(0, len(w.past)-1-w.rng.IntN(60))]
			if w.rng.IntN(15) == 0 {
				c.Cost++ // another payload
			}
		default:
			c = w.fresh()
			w.past = append(w.past, c)
		}
		w.send(c)
	}
}

// forgive has the usage of a principal dropped, of one class or of all.
func (w *world) forgive() {
	principal := w.principal()
	to := w.newest(principal)
	w.order(to.part, &fsm.Entry{Kind: fsm.KindForgive, Forgive: &fsm.Forgive{
		Principal: principal, Class: []string{"", "a", "b"}[w.rng.IntN(3)], RouteEpoch: to.epoch,
	}})
}

func (w *world) send(c fsm.Check) {
	all := w.routes[c.Principal]
	to := all[len(all)-1]
	c.RouteEpoch = to.epoch
	if len(all) > 1 && w.rng.IntN(8) == 0 {
		old := all[len(all)-2]
		if to.part = old.part; w.rng.IntN(2) == 0 {
			c.RouteEpoch = old.epoch
		}
	}
	if n := to.part.believer(); n != nil && len(n.queue) < 30 {
		n.queue = append(n.queue, request{c, w.now})
	}
}

// crowd has principals of slots ask again and again, as late as can be before they move and as soon as can be after:
// for more, and once more what was decided lately.
func (w *world) crowd(ranges []fsm.SlotRange, p *part) {
	if w.rng.IntN(3) == 0 {
		return
	}
	n := p.leader
	w.judge.eachOf(ranges, func(principal string, h *holder) {
		if n.leading != p.term || n.on.asleep > 0 || len(n.queue) > 40 || w.rng.IntN(3) == 0 {
			return
		}
		for range 4 {
			c := w.fresh()
			c.Principal, c.RouteEpoch, c.PolicyRevision = principal, w.newest(principal).epoch, 0
			w.past = append(w.past, c)
			n.queue = append(n.queue, request{c, w.now})
		}
		again := 0
		for i := len(w.past) - 1; i >= 0 && again < 2; i-- {
			c := w.past[i]
			if c.Principal == principal && w.judge.records[recordKey(&request{Check: c})] != nil {
				c.RouteEpoch = w.newest(principal).epoch
				n.queue = append(n.queue, request{c, w.now})
				again++
			}
		}
	})
	p.round()
}

// edge asks at the very nanosecond at which something ends, or the one before: an admission's window, or a record.
func (w *world) edge() {
	principal := w.principal()
	to := w.newest(principal)
	p := to.part
	p.round()
	n := p.leader
	if n.leading != p.term || n.on.asleep > 0 || n.on.frozen > 0 || len(n.queue)+len(n.orders) > 0 || n.batch != nil {
		return
	}
	c, target := w.fresh(), fsm.Time(0)
	c.Principal = principal
	if all := w.judge.admissions[principal]; len(all) > 0 && w.rng.IntN(3) > 0 {
		a := all[max(0, len(all)-1-w.rng.IntN(12))]
		l := &caps[w.rng.IntN(len(caps))]
		target, c.Class, c.Cost, c.Also = a.at+fsm.Time(l.window), l.classes[0], 1, nil
	} else {
		for _, old := range w.past {
			rec := w.judge.records[recordKey(&request{Check: old})]
			if old.Principal == principal && rec != nil && rec.ends > p.time()+1 && (target == 0 || rec.ends < target) {
				c, target = rec.check, rec.ends
			}
		}
	}
	target -= fsm.Time(w.rng.IntN(2))
	if !n.look() || !w.reach(n, target) {
		return
	}
	c.RouteEpoch = to.epoch
	n.queue = append(n.queue, request{c, w.now})
	for range 3 * w.rng.IntN(2) { // what fills the window with it
		more := w.fresh()
		more.Principal, more.Class, more.Also, more.RouteEpoch = principal, c.Class, nil, to.epoch
		n.queue = append(n.queue, request{more, w.now})
	}
	n.close()
	n.propose()
	p.commit(true)
	n.catchUp()
	w.counts.Edges++
}

func (p *part) time() fsm.Time { return p.w.judge.timeOf(p).time }

// reach lets time pass until the leader's stamp is a given one. Partition time is never faster than true time, so each
// wait for what is left falls short.
func (w *world) reach(n *replica, target fsm.Time) bool {
	for range 40 {
		at, err := n.timeline.Stamp(n.led)
		switch left := int64(target) - at; {
		case err != nil || left < 0 || left > 20*second:
			return false
		case left == 0:
			return true
		default:
			w.let(left)
		}
	}
	return false
}
