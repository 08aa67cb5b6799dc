package gossip

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"
)

const (
	// maxAsked bounds the addresses that are asked in one round.
	maxAsked = 16
	// askers is how many are asked at once.
	askers = 4
	// maxResolved bounds the addresses of one name.
	maxResolved = 4
	// lookupTimeout bounds one look-up of a name.
	lookupTimeout = 2 * time.Second
	// aloneLogInterval is how often it is logged that nobody answers.
	aloneLogInterval = 5 * time.Minute
)

// search asks seeds, and nodes that have gone, for the state of the cluster, until ctx ends: all at once at the
// begin, and then while this node is alone or one of them is missing.
func (g *Gossip) search(ctx context.Context) {
	var lastLog time.Time
	for {
		missing := g.missing()
		err := g.ask(ctx, missing)
		pause := g.pace.settled
		alive, _ := g.table.where()
		switch {
		case len(alive) == 0:
			pause = g.pace.alone
			if now := time.Now(); err != nil && ctx.Err() == nil && now.Sub(lastLog) > aloneLogInterval {
				g.logger.Info("no other node answers yet", "asked", len(missing), "last_error", err)
				lastLog = now
			}
		case len(missing) > 0:
			pause = g.pace.missing
		}
		// Half to one and a half of it, so that nodes which were started together do not ask together.
		timer := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// missing draws addresses at which no node is seen.
func (g *Gossip) missing() []string {
	alive, gone := g.table.where()
	drop := func(addr string) bool { return addr == "" || alive[addr] || g.own(addr) }
	drawn := make(map[string]bool)
	var missing []string
	for _, addr := range append(g.seeds(), gone...) {
		if !drop(addr) && !drawn[addr] {
			drawn[addr] = true
			missing = append(missing, addr)
		}
	}
	rand.Shuffle(len(missing), func(i, k int) { missing[i], missing[k] = missing[k], missing[i] })
	return missing[:min(len(missing), maxAsked)]
}

// own reports whether an address is this node's.
func (g *Gossip) own(addr string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return addr == g.self.Gossip || addr == g.bind || addr == g.transport.advertise.String()
}

// ask exchanges states with the nodes at the addresses. It returns the last error; that some do not answer is
// how things are.
func (g *Gossip) ask(ctx context.Context, addrs []string) error {
	var mu sync.Mutex
	var last error
	var wg sync.WaitGroup
	places := make(chan struct{}, askers)
	for _, addr := range addrs {
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			if err := g.askOne(ctx, addr); err != nil {
				g.logger.Debug("a seed does not answer", "address", addr, "error", err)
				mu.Lock()
				last = fmt.Errorf("%s: %w", addr, err)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return last
}

func (g *Gossip) askOne(ctx context.Context, addr string) error {
	at, err := resolve(ctx, addr)
	if err != nil {
		return err
	}
	alive, _ := g.table.where()
	var targets []string
	for _, a := range at {
		if to := a.String(); !alive[to] && !g.own(to) {
			targets = append(targets, to)
		}
	}
	if len(targets) == 0 || ctx.Err() != nil {
		return ctx.Err()
	}
	_, err = g.list.Join(targets)
	return err
}

// resolve looks up host:port. The addresses of a name are at most maxResolved, IPv4 first. An empty host gives an
// invalid address, which stands for all of this machine's.
func resolve(ctx context.Context, addr string) ([]netip.AddrPort, error) {
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	port, err := net.DefaultResolver.LookupPort(ctx, "tcp", text)
	if err != nil {
		return nil, err
	}
	if host == "" {
		return []netip.AddrPort{netip.AddrPortFrom(netip.Addr{}, uint16(port))}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	var four, six []netip.AddrPort
	for _, ip := range ips {
		// A zone means nothing on another machine, and memberlist takes an address with one for a name.
		at := netip.AddrPortFrom(ip.Unmap().WithZone(""), uint16(port))
		if at.Addr().Is4() {
			four = append(four, at)
		} else {
			six = append(six, at)
		}
	}
	all := append(four, six...)
	if len(all) == 0 {
		return nil, fmt.Errorf("%s has no address", host)
	}
	return all[:min(len(all), maxResolved)], nil
}

// addresses finds where to listen, and what to tell others; bind is the default for the latter.
func addresses(bind, advertise string) (at, told netip.AddrPort, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*lookupTimeout)
	defer cancel()
	if bind == "" {
		return at, told, errors.New("the gossip address is missing: give host:port")
	}
	if advertise == "" {
		advertise = bind
	}
	binds, err := resolve(ctx, bind)
	if err != nil {
		return at, told, fmt.Errorf("gossip address %s: %w", bind, err)
	}
	tells, err := resolve(ctx, advertise)
	if err != nil {
		return at, told, fmt.Errorf("advertised gossip address %s: %w", advertise, err)
	}
	at, told = binds[0], tells[0]
	if ip := told.Addr(); !ip.IsValid() || ip.IsUnspecified() || ip.IsMulticast() {
		return at, told, fmt.Errorf("advertised gossip address %s: others cannot dial it, advertise one of this machine",
			advertise)
	}
	return at, told, nil
}

// discard is the logger of who gave none.
func discard(logger *slog.Logger) *slog.Logger {
	if logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return logger
}
