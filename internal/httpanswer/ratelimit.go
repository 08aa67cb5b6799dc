package httpanswer

import (
	"net/http"
	"strconv"
	"strings"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
)

// maxSFInteger is the largest integer of a structured field (RFC 9651). A larger quota or room is
// stated as this much: less than there is, never more.
const maxSFInteger = 999_999_999_999_999

const millisPerSecond = 1000

// headerLimit is one limit as the RateLimit headers of draft-ietf-httpapi-ratelimit-headers-10 can
// express it.
type headerLimit struct {
	name          string // as a structured-field string
	limit         *quoratev1.LimitState
	windowSeconds int64
}

// headerLimits are the limits of d that can be expressed: names in printable ASCII, windows of a
// second or more. A window that is no whole number of seconds is rounded up, so that a client that
// spreads the quota over it stays within the limit. Of several limits with one name, as there are
// while one is carried, the tightest counts.
func headerLimits(d *quoratev1.Decision) []headerLimit {
	var out []headerLimit
	at := map[string]int{}
	for _, l := range d.GetLimits() {
		w := l.GetWindow().AsDuration().Milliseconds()
		name, ok := sfString(l.GetName())
		if !ok || w < millisPerSecond {
			continue
		}
		if nanos := l.GetWindow().GetNanos(); nanos%1_000_000 != 0 {
			w++
		}
		h := headerLimit{name: name, limit: l, windowSeconds: wholeSeconds(w, millisPerSecond)}
		if i, dup := at[name]; dup {
			if l.GetRemaining() < out[i].limit.GetRemaining() {
				out[i] = h
			}
			continue
		}
		at[name] = len(out)
		out = append(out, h)
	}
	return out
}

// SetRateLimit sets RateLimit-Policy and RateLimit. A denial shows the room of the limit that denied
// only, until the same instant as Retry-After: another limit could name an earlier or a later one. legacy adds
// X-RateLimit-*.
func SetRateLimit(h http.Header, d *quoratev1.Decision, legacy bool) {
	var policies, rooms []string
	var tightest *headerLimit
	denied := d.GetOutcome() != quoratev1.Outcome_OUTCOME_ALLOWED
	denying, _ := sfString(d.GetLimit())
	limits := headerLimits(d)
	for i := range limits {
		l := &limits[i]
		policies = append(policies, l.name+";q="+sfInteger(l.limit.GetLimit())+
			";w="+strconv.FormatInt(l.windowSeconds, 10))
		if denied && l.name != denying {
			continue
		}
		room := l.name + ";r=" + sfInteger(l.limit.GetRemaining())
		if t := secondsToMore(d, l); t > 0 {
			room += ";t=" + strconv.FormatInt(t, 10)
		}
		rooms = append(rooms, room)
		if tightest == nil || l.limit.GetRemaining() < tightest.limit.GetRemaining() {
			tightest = l
		}
	}
	if len(policies) > 0 {
		h.Set("RateLimit-Policy", strings.Join(policies, ", "))
	}
	if len(rooms) > 0 {
		h.Set("RateLimit", strings.Join(rooms, ", "))
	}
	if legacy && tightest != nil {
		h.Set("X-RateLimit-Limit", strconv.FormatInt(tightest.limit.GetLimit(), 10))
		h.Set("X-RateLimit-Remaining", strconv.FormatInt(tightest.limit.GetRemaining(), 10))
		h.Set("X-RateLimit-Reset", strconv.FormatInt(secondsToMore(d, tightest), 10))
	}
}

// secondsToMore is how long until l has more room, in whole seconds rounded up; 0 when it is empty.
func secondsToMore(d *quoratev1.Decision, l *headerLimit) int64 {
	if d.GetRetryAt() != nil {
		return max(1, wholeSeconds(d.GetRetryAfterMs(), millisPerSecond)) // as Retry-After
	}
	return wholeSeconds(l.limit.GetResetMs(), millisPerSecond)
}

func sfInteger(n int64) string {
	return strconv.FormatInt(min(max(0, n), maxSFInteger), 10)
}

// sfString writes s as a structured-field string; false when s has a character that none can have.
func sfString(s string) (string, bool) {
	var b strings.Builder
	b.WriteByte('"')
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c < 0x20 || c > 0x7e {
			return "", false
		}
		if c == '"' || c == '\\' {
			b.WriteByte('\\')
		}
		b.WriteByte(c)
	}
	b.WriteByte('"')
	return b.String(), true
}
