package gateway

import (
	"net/http"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// ambiguous says why a request of HTTP/2 has two readings, as package wire does for HTTP/1; empty when it has one. What
// net/http refuses of it by itself is not looked at. It removes a Host header, which HTTP/1 of net/http does too.
func ambiguous(r *http.Request) string {
	if r.ProtoMajor != 2 {
		return ""
	}
	hosts, lengths := r.Header["Host"], r.Header["Content-Length"]
	switch {
	case r.Host == "" || !httpguts.ValidHostHeader(r.Host):
		return "send the host in :authority"
	case len(hosts) > 1 || len(hosts) == 1 && !strings.EqualFold(hosts[0], r.Host):
		return "leave out host, or send in it what :authority says"
	case len(lengths) > 1 || len(lengths) == 1 && !isLength(lengths[0], r.ContentLength):
		return "send content-length once, the number of the body's bytes in digits"
	}
	delete(r.Header, "Host")
	return ""
}

// isLength reports whether s is n, in digits alone.
func isLength(s string, n int64) bool {
	got, err := strconv.ParseUint(s, 10, 63) // takes no sign
	return err == nil && int64(got) == n
}
