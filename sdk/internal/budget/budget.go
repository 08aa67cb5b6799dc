package budget

import "sync"

// burstSeconds of the minimum can be saved up.
const burstSeconds = 10

// Budget is a bucket of tokens, one a retry. It is for concurrent use.
type Budget struct {
	ratio, perNano, burst float64

	mu     sync.Mutex // guards the rest
	tokens float64
	at     int64
}

// New makes a budget that starts, at nowNanos, with one second's minimum.
func New(nowNanos int64, ratio float64, minPerSecond int) *Budget {
	least := float64(minPerSecond)
	return &Budget{ratio: ratio, perNano: least / 1e9, burst: max(burstSeconds*least, 1), tokens: least, at: nowNanos}
}

// Earn notes some first sends.
func (b *Budget) Earn(nowNanos int64, sends int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fill(nowNanos)
	b.tokens = min(b.tokens+float64(sends)*b.ratio, b.burst)
}

// Spend takes what one retry costs, and reports whether there was enough.
func (b *Budget) Spend(nowNanos int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fill(nowNanos)
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

func (b *Budget) fill(nowNanos int64) {
	if nowNanos > b.at {
		b.tokens = min(b.tokens+float64(nowNanos-b.at)*b.perNano, b.burst)
		b.at = nowNanos
	}
}
