package bench

import (
	"math"
	"math/rand/v2"
)

// Zipf draws ranks from 0 to n-1, rank k with a probability proportional to 1/(k+1)^s. Unlike the standard library's
// it takes any s above 0, also those up to 1 that traffic is often described with. It is not for concurrent use.
//
// It is rejection-inversion: W. Hörmann and G. Derflinger, "Rejection-inversion to generate variates from monotone
// discrete distributions", ACM TOMACS 6(3), 1996.
type Zipf struct {
	rng              *rand.Rand
	n                int
	s                float64
	first, last, cut float64
}

// NewZipf makes a Zipf; n is at least 1 and s above 0.
func NewZipf(rng *rand.Rand, n int, s float64) *Zipf {
	z := &Zipf{rng: rng, n: n, s: s}
	z.first = z.integral(1.5) - 1
	z.last = z.integral(float64(n) + 0.5)
	z.cut = 2 - z.inverse(z.integral(2.5)-z.density(2))
	return z
}

// Next draws a rank.
func (z *Zipf) Next() int {
	for {
		u := z.last + z.rng.Float64()*(z.first-z.last)
		x := z.inverse(u)
		k := min(max(math.Floor(x+0.5), 1), float64(z.n))
		if k-x <= z.cut || u >= z.integral(k+0.5)-z.density(k) {
			return int(k) - 1
		}
	}
}

// density is 1/x^s, integral its antiderivative up to a constant, and inverse the inverse of that.
func (z *Zipf) density(x float64) float64 { return math.Exp(-z.s * math.Log(x)) }

func (z *Zipf) integral(x float64) float64 {
	logX := math.Log(x)
	return expm1Over((1-z.s)*logX) * logX
}

func (z *Zipf) inverse(x float64) float64 {
	t := max(x*(1-z.s), -1) // rounding must not leave the domain of the logarithm
	return math.Exp(log1pOver(t) * x)
}

// log1pOver is log(1+x)/x, and expm1Over (exp(x)-1)/x, also near 0, where s is near 1.
func log1pOver(x float64) float64 {
	if math.Abs(x) > 1e-8 {
		return math.Log1p(x) / x
	}
	return 1 - x*(0.5-x*(1.0/3-0.25*x))
}

func expm1Over(x float64) float64 {
	if math.Abs(x) > 1e-8 {
		return math.Expm1(x) / x
	}
	return 1 + x*0.5*(1+x/3*(1+0.25*x))
}
