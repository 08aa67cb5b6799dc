//go:build chaos && linux

package chaos

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"sync"
	"time"

	"github.com/quorate/quorate/clock"
)

// clockEnvironment names the variable with the file, an absolute path, that holds a [Disturbance].
const clockEnvironment = "QUORATE_CLOCK"

// clockLook is between two looks at that file.
const clockLook = 10 * time.Millisecond

// Disturbance is what is wrong with a machine's clocks, as JSON. A file is put in place whole, by renaming it, and
// counts within a few hundredths of a second; where there is none, nothing is wrong.
//
// The guarantees allow for any wall clock. Of the other clocks they allow for a rate within clock.max_drift_ppm; a
// clock that is slower than that, or put back, may cost availability and never breaks a cap, but has a policy lease
// that runs on it last too long. One that is faster or is put forward may break caps.
type Disturbance struct {
	// WallOffsetNanos is by how much the wall clock is ahead.
	WallOffsetNanos int64 `json:"wall_offset_ns"`
	// MonoOffsetNanos is by how much all clocks that count are ahead, beside what the rate has made of them.
	MonoOffsetNanos int64 `json:"mono_offset_ns"`
	// RatePPM is by how many millionths they run fast while the file holds it; at least -1,000,000, with which they stand.
	RatePPM int64 `json:"rate_ppm"`
	// Freeze has those stand that do not count while a machine is suspended. What they have missed they do not make up
	// for afterwards.
	Freeze bool `json:"freeze"`
}

// Clock is the source as it is disturbed. Without the variable it is the source itself. Timers are never disturbed.
func Clock(source clock.Source) clock.Source {
	file := os.Getenv(clockEnvironment)
	if file == "" {
		return source
	}
	d := newDisturbed(source)
	d.look(file)
	go func() {
		for range time.Tick(clockLook) {
			d.look(file)
		}
	}()
	return d
}

// disturbed is a disturbed source.
type disturbed struct {
	source clock.Source

	mu    sync.Mutex // guards the fields below
	now   Disturbance
	since clock.Reading // true, when now began
	from  clock.Reading // shown then, without the offset
}

var _ clock.Source = (*disturbed)(nil)

func newDisturbed(source clock.Source) *disturbed {
	read := source.Read()
	return &disturbed{source: source, since: read, from: read}
}

// Read reads the disturbed clocks that count.
func (d *disturbed) Read() clock.Reading {
	d.mu.Lock()
	defer d.mu.Unlock()
	shown := d.at(d.source.Read())
	shown.Mono += d.now.MonoOffsetNanos
	shown.Raw += d.now.MonoOffsetNanos
	shown.Boot += d.now.MonoOffsetNanos
	return shown
}

// Wall reads the disturbed wall clock, with the kernel's word for it.
func (d *disturbed) Wall() clock.Wall {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.source.Wall()
	w.Nanos += d.now.WallOffsetNanos
	return w
}

// at is what the clocks show at a true reading, without the offset. It needs mu.
func (d *disturbed) at(read clock.Reading) clock.Reading {
	run := func(from, since, now int64) int64 {
		passed := now - since
		extra := new(big.Int).Mul(big.NewInt(passed), big.NewInt(d.now.RatePPM))
		return from + passed + extra.Quo(extra, big.NewInt(1_000_000)).Int64()
	}
	boot := run(d.from.Boot, d.since.Boot, read.Boot)
	if d.now.Freeze {
		return clock.Reading{Mono: d.from.Mono, Raw: d.from.Raw, Boot: boot}
	}
	return clock.Reading{
		Mono: run(d.from.Mono, d.since.Mono, read.Mono),
		Raw:  run(d.from.Raw, d.since.Raw, read.Raw),
		Boot: boot,
	}
}

// disturb has another disturbance begin.
func (d *disturbed) disturb(with Disturbance) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.now == with {
		return
	}
	read := d.source.Read()
	d.from, d.since = d.at(read), read
	d.now = with
	fmt.Fprintf(os.Stderr, "the clocks are disturbed: %+v\n", with)
}

// look has begin what the file holds.
func (d *disturbed) look(file string) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		d.disturb(Disturbance{})
		return
	}
	var with Disturbance
	if err == nil {
		decoder := json.NewDecoder(bytes.NewReader(text))
		decoder.DisallowUnknownFields()
		err = decoder.Decode(&with)
	}
	if err == nil && with.RatePPM < -1_000_000 {
		err = fmt.Errorf("rate_ppm is %d: clocks that count do not run backwards", with.RatePPM)
	}
	if err != nil {
		panic(fmt.Sprintf("%s=%s: %v", clockEnvironment, file, err))
	}
	d.disturb(with)
}
