package gateway

import (
	"net/http"
	"net/url"

	"github.com/quorate/quorate/sdk/caller"
	"github.com/quorate/quorate/sdk/quotahttp"
)

// route is where a request goes, and by which rule.
type route struct {
	name     string
	upstream *upstream
	rule     caller.Rule
	upgrades bool // a connection may change its protocol
}

// routes find the route of a request, as quotahttp finds its rule.
type routes struct {
	mux      *http.ServeMux
	byMatch  map[string]*route // by pattern
	fallback *route            // nil: what no route names is refused
}

// find is the route of a request; nil when there is none.
func (t *routes) find(r *http.Request) *route {
	_, pattern := t.mux.Handler(&http.Request{Method: r.Method, URL: &url.URL{Path: r.URL.Path}})
	if found := t.byMatch[pattern]; found != nil {
		return found
	}
	return t.fallback
}

// all are the routes, the fallback too.
func (t *routes) all() (out []*route) {
	for _, r := range t.byMatch {
		out = append(out, r)
	}
	if t.fallback != nil {
		out = append(out, t.fallback)
	}
	return out
}

// refused is the rule of what no route names when there is no fallback. The gateway has answered such a request before
// this is asked for: it is there so that nothing passes if not.
func refused() caller.Rule {
	return caller.Limit("default", caller.KeyFunc(func(*caller.Request) (string, error) {
		return "", &caller.Error{Kind: caller.ErrMalformed, Detail: "no such resource"}
	}))
}

// compileRoutes makes the table of routes and the middleware that enforces their rules.
func (c *Config) compileRoutes(p *problems, who *callers, to map[string]*upstream, checker quotahttp.Checker,
	onError func(*http.Request, error),
) (*routes, func(http.Handler) http.Handler) {
	t := &routes{mux: http.NewServeMux(), byMatch: map[string]*route{}}
	rules := quotahttp.Rules{Routes: map[string]caller.Rule{}, Fallback: refused()}
	names := map[string]string{}
	if len(c.Routes) > maxRoutes {
		p.add("routes", "%d routes: write at most %d", len(c.Routes), maxRoutes)
		return t, nil
	}
	if len(c.Routes) == 0 && c.Fallback == nil && !c.lost("fallback") {
		p.add("routes", "no request could pass: write at least one, or a fallback")
	}
	at := map[string]int{}
	for i := range c.Routes {
		one, place := &c.Routes[i], index("routes", i)
		earlier, dup := at[one.Match]
		r, ok := c.compileRoute(p, place, one, who, to, names, dup)
		switch {
		case one.Match == "":
			p.add(place+".match", "write a pattern, as \"POST /convert\" or \"/files/\"; what no route names has fallback")
		case dup:
			p.add(place+".match", "%q is also that of routes[%d]: remove one of them", one.Match, earlier)
		default:
			at[one.Match] = i
			if !ok {
				r.rule = refused() // so that its pattern is judged with the others
			}
			rules.Routes[one.Match], t.byMatch[one.Match] = r.rule, r
		}
	}
	if c.Fallback != nil {
		if c.Fallback.Match != "" {
			p.add("fallback.match", "the fallback is for what no route names: remove match")
		}
		if r, ok := c.compileRoute(p, "fallback", c.Fallback, who, to, names, false); ok {
			t.fallback, rules.Fallback = r, r.rule
			if len(c.Routes) == 0 { // quotahttp judges paths only where there are patterns
				rules.Routes["/"], rules.Fallback = r.rule, refused()
			}
		}
	}
	options := []quotahttp.Option{quotahttp.WithRetryJitter(c.Answers.RetryJitter), quotahttp.WithOnError(onError)}
	if c.Answers.LegacyHeaders {
		options = append(options, quotahttp.WithLegacyHeaders())
	}
	limit, err := quotahttp.New(checker, rules, options...)
	if err != nil {
		p.nest("routes", err)
		return t, nil
	}
	for pattern := range t.byMatch { // they are good, and do not contradict each other, or New had said so
		t.mux.Handle(pattern, http.NotFoundHandler())
	}
	return t, limit
}

func (c *Config) compileRoute(p *problems, place string, one *RouteConfig, who *callers, to map[string]*upstream,
	names map[string]string, again bool,
) (*route, bool) {
	before := len(*p)
	r := &route{name: one.Name, upstream: to[one.Upstream], rule: caller.Rule{Unlimited: one.Unlimited},
		upgrades: *one.AllowUpgrades}
	if r.upgrades && one.Unlimited && len(c.Upgrades) == 0 {
		p.add(place+".allow_upgrades", "upgrades lists no protocol: list some, or remove it")
	}
	if earlier, dup := names[one.Name]; dup && !again {
		p.add(place+".name", "%q is also that of %s: give each its own", one.Name, earlier)
	}
	if one.Name == routeOfNoRoutes {
		p.add(place+".name", "%q is what metrics call requests without a route: write another", one.Name)
	}
	names[one.Name] = place
	if _, known := c.Upstreams[one.Upstream]; !known {
		p.add(place+".upstream", "%q: write the name of one of upstreams", one.Upstream)
	}
	unknown := false
	for i := range one.Charges {
		ch := &one.Charges[i]
		if _, known := c.Callers[ch.By]; !known {
			p.add(index(place+".charges", i)+".by", "%q: write the name of one of callers", ch.By)
		}
		if *ch.Cost < 1 || *ch.Cost > 1<<53 {
			p.add(index(place+".charges", i)+".cost", "%d: set it between 1 and 2^53", *ch.Cost)
		}
		key, known := who.keys[ch.By]
		unknown = unknown || !known
		r.rule.Charges = append(r.rule.Charges, charge(ch.Class, key, *ch.Cost))
	}
	switch {
	case len(one.Charges) == 0 && !one.Unlimited:
		p.add(place+".charges", "list what a request takes, as {class: convert, by: account}, or say unlimited: true")
	case unknown: // it has been reported
	default:
		if err := r.rule.Err(); err != nil {
			p.nest(place, err)
		}
	}
	return r, len(*p) == before && !unknown
}

func charge(class string, key caller.Key, cost int64) caller.Charge {
	return caller.Charge{
		Class: class, Key: key,
		Tier: func(r *caller.Request) (string, error) { return passageOf(r.Context).tier, nil },
		Cost: func(*caller.Request) (int64, error) { return cost, nil },
	}
}
