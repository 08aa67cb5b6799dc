package gateway

import (
	"fmt"
	"net/http"
	"strings"
)

// probeHandler is what the address `admin` serves.
func (g *Gateway) probeHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", g.readyz)
	mux.Handle("GET /metrics", g.metrics.handler())
	return mux
}

// readyz says whether requests should be sent here: not before it is known what to do with them, and not when the
// gateway stops. That the cluster is away is no reason: then the classes' failure modes decide, here as anywhere.
func (g *Gateway) readyz(w http.ResponseWriter, r *http.Request) {
	known := g.configured.Load() || g.current.Load().config.Cluster.PolicyFile != ""
	w.Header().Set("Cache-Control", "no-store")
	switch {
	case g.stopping.Load():
		http.Error(w, "the gateway is stopping", http.StatusServiceUnavailable)
		return
	case !known:
		http.Error(w, "the cluster was not reached yet", http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
	if r.URL.Query().Has("verbose") {
		s := g.client.Stats()
		fmt.Fprintf(w, "the cluster's configuration is confirmed: %t\npolicy revision: %d\nnodes connected: %d\n"+
			"requests under way: %d\n", s.WatchLive, s.PolicyRevision, s.Nodes, g.underWay.Load())
		if names := g.unlisted(); len(names) > 0 {
			fmt.Fprintf(w, "classes that the policy does not list, which count by the rules of default: %s\n",
				strings.Join(names, ", "))
		}
	}
}
