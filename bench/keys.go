package bench

import (
	"fmt"
	"math/rand/v2"
	"strconv"
)

// MaxKeys bounds the keys of a load: their names are held in memory.
const MaxKeys = 10_000_000

// Keys are the principals of a load. They are numbered from 0; with Zipf, low numbers are the popular ones.
type Keys struct {
	// N is how many there are, 1 to MaxKeys.
	N int
	// Prefix begins each name.
	Prefix string
	// ZipfS is the exponent of their popularity; 0: all are equally popular.
	ZipfS float64
	// ExhaustedShare is the share of the keys, 0 to 1, whose allowance is used up before the measurement. They are
	// spread evenly over the numbers, and so over the popular and the others.
	ExhaustedShare float64
}

// validate reports what is wrong.
func (k Keys) validate() error {
	switch {
	case k.N < 1 || k.N > MaxKeys:
		return fmt.Errorf("%d keys: give 1 to %d", k.N, MaxKeys)
	case !(k.ZipfS >= 0 && k.ZipfS <= 10):
		return fmt.Errorf("a zipf exponent of %v: give 0, which is uniform, to 10", k.ZipfS)
	case !(k.ExhaustedShare >= 0 && k.ExhaustedShare <= 1):
		return fmt.Errorf("an exhausted share of %v: give 0 to 1", k.ExhaustedShare)
	}
	return nil
}

// Exhausted reports whether a key is of the exhausted share: of any m keys in a row, m times the share are, up to
// one.
func (k Keys) Exhausted(i int) bool {
	return int64(float64(i+1)*k.ExhaustedShare) > int64(float64(i)*k.ExhaustedShare)
}

// names holds the names of all keys in one string, so that a load allocates none.
type names struct {
	all   string
	width int
}

func (k Keys) names() names {
	digits := len(strconv.Itoa(k.N - 1))
	width := len(k.Prefix) + digits
	all := make([]byte, 0, k.N*width)
	for i := range k.N {
		all = append(all, k.Prefix...)
		number := strconv.Itoa(i)
		for range digits - len(number) {
			all = append(all, '0')
		}
		all = append(all, number...)
	}
	return names{string(all), width}
}

func (n names) of(i int) string { return n.all[i*n.width : (i+1)*n.width] }

// picker draws keys. It is not for concurrent use.
type picker struct {
	rng  *rand.Rand
	n    int
	zipf *Zipf // nil: uniform
}

// picker makes one per worker: the draws depend on the worker's number alone.
func (k Keys) picker(worker int) picker {
	rng := rand.New(rand.NewPCG(0x9e3779b97f4a7c15, uint64(worker)))
	p := picker{rng: rng, n: k.N}
	if k.ZipfS > 0 {
		p.zipf = NewZipf(rng, k.N, k.ZipfS)
	}
	return p
}

func (p *picker) next() int {
	if p.zipf != nil {
		return p.zipf.Next()
	}
	return p.rng.IntN(p.n)
}
