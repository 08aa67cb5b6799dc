package policy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"runtime"
	"strings"
	"testing"
)

// TestDecodeRefusesWhatIsNotExact cuts an encoding at every byte, lets bytes follow it, and changes
// every bit of it: what is accepted nevertheless is the canonical encoding of another policy.
func TestDecodeRefusesWhatIsNotExact(t *testing.T) {
	b := mustNew(t, parts()).AppendBinary(nil)
	for i := range b {
		if _, err := Decode(b[:i]); !errors.Is(err, ErrEncoding) {
			t.Errorf("cut to %d bytes: %v", i, err)
		}
	}
	if _, err := Decode(append(bytes.Clone(b), 0)); !errors.Is(err, ErrEncoding) {
		t.Errorf("followed by a byte: %v", err)
	}
	for bit := range len(b) * 8 {
		changed := bytes.Clone(b)
		changed[bit/8] ^= 1 << (bit % 8)
		p, err := Decode(changed)
		if err == nil && !bytes.Equal(p.AppendBinary(nil), changed) {
			t.Errorf("bit %d: accepted, but encoded in other bytes", bit)
		}
	}
}

// TestDecodeRefusesForms gives encodings that hold a policy, but not in the canonical form.
func TestDecodeRefusesForms(t *testing.T) {
	one := []byte("\x01\x01m\x01\xc0\x84\x3d") // one limit, m: 1 per 1 ms
	class := string(one) + "\x00" + string(varints(uint64(DefaultReplayHorizonNanos))) +
		string(varints(uint64(DefaultTimeoutNanos))) + "\x00"
	rules := func(index ...byte) string {
		s := string([]byte{byte(len(index))})
		for _, i := range index {
			s += string([]byte{i}) + string(one)
		}
		return s
	}
	head := "\x01\x02p1" + class + "\x02\x01a" + class + "\x01b" + class
	for _, c := range []struct{ text, want string }{
		{head + "\x00\x00\x00", ""},
		{head + "\x00\x01\x01t" + rules(0, 1) + "\x01\x01p" + rules(2), ""},
		{"\x03" + head[1:] + "\x00\x00\x00", "format 3 is unknown"},
		{"\x02" + head[1:] + "\x00\x00\x00\x00" + strings.Repeat("\x00", 12), "no domain follows"},
		{"\x02" + head[1:] + "\x00\x00\x00\x01\x01e\x00\x00\x01\x01\x01k\x00\x00\x00\x00\x00\x01\x01k\x00", ""},
		{"\x02" + head[1:] + "\x00\x00\x00\x01\x01e\x00\x02\x01\x01\x01k\x00\x00\x00\x00\x00\x01\x01k\x00", "neither 0 nor 1"},
		{"\x02" + head[1:] + "\x00\x00\x00\x01\x01e\x00\x00\x01\x01\x01k\x03\x00\x00\x00\x00\x01\x01k\x00", "match 3"},
		{"\x02" + head[1:] + "\x00\x00\x00\x01\x01e\x00\x00\x01\x01\x01k\x00\x00\x00\x00\x05\x01\x01k\x00", "unknown or out of order"},
		{"\x01\x82\x00p1" + class + "\x00\x00\x00\x00", "shortest form"},
		{"\x01\x02p1" + class + "\x02\x01b" + class + "\x01a" + class + "\x00\x00\x00", "follows"},
		{"\x01\x02p1" + class + "\x02\x01a" + class + "\x01a" + class + "\x00\x00\x00", "follows"},
		{head + "\x00\x01\x01t" + rules(1, 0) + "\x00", "out of order"},
		{head + "\x00\x01\x01t" + rules(1, 1) + "\x00", "out of order"},
		{head + "\x00\x01\x01t" + rules(3) + "\x00", "unknown or out of order"},
		{head + "\x00\x01\x01t\x00\x00" + strings.Repeat("\x00", 9), "has no rule"},
		{head + "\x00\x02\x01u" + rules(0) + "\x01t" + rules(0) + "\x00", "follows"},
		{head + "\x01\x01g\x02\x02\x01" + string(one) + "\x00\x00", "out of order"},
		{head + "\x01\x01g\x01\x00" + string(one) + "\x00\x00", "default is in a group"},
		{strings.Replace(head, "\x3d\x00", "\x3d\x06", 1) + "\x00\x00\x00", "flags"},
		{strings.Replace(head, "\x3d\x00", "\x3d\x08", 1) + "\x00\x00\x00", "flags"},
	} {
		_, err := Decode([]byte(c.text))
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%q: %v", c.text, err)
		case c.want != "" && (!errors.Is(err, ErrEncoding) || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%q: want %q, got %v", c.text, c.want, err)
		}
	}
}

// TestDecodeRefusesInvalid gives canonical bytes of a policy that is beyond a bound.
func TestDecodeRefusesInvalid(t *testing.T) {
	p := mustNew(t, parts())
	p.Classes["a"].TimeoutNanos = p.Classes["a"].ReplayHorizonNanos
	_, err := Decode(p.AppendBinary(nil))
	if problems := Problems(nil); !errors.As(err, &problems) ||
		!strings.Contains(err.Error(), "ten times the timeout") {
		t.Errorf("a timeout as long as the horizon: %v", err)
	}
}

// TestDecodeAllocatesByInput announces as many things as are allowed in a few bytes and measures
// what Decode allocates for them.
func TestDecodeAllocatesByInput(t *testing.T) {
	head := mustNew(t, Policy{Version: "p", Default: parts().Default}).AppendBinary(nil)
	head = head[:len(head)-4] // without the four numbers of classes, groups, tiers, principals
	for zeros := range 4 {
		hostile := append(bytes.Clone(head), make([]byte, zeros)...)
		for _, n := range []uint64{4096, 1_000_000, 1 << 62, 1<<64 - 1} {
			b := append(append(bytes.Clone(hostile), varints(n)...), "\x01a\x01\x00"...)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := Decode(b)
			runtime.ReadMemStats(&after)
			if !errors.Is(err, ErrEncoding) {
				t.Errorf("%d announced after %d zeros: %v", n, zeros, err)
			}
			if used := after.TotalAlloc - before.TotalAlloc; used > 64<<10 {
				t.Errorf("%d announced after %d zeros: %d bytes allocated", n, zeros, used)
			}
		}
	}
}

func varints(ns ...uint64) (b []byte) {
	for _, n := range ns {
		b = binary.AppendUvarint(b, n)
	}
	return b
}

// FuzzDecode shows that Decode never panics and that what it accepts is canonical and valid.
func FuzzDecode(f *testing.F) {
	f.Add(mustNew(f, parts()).AppendBinary(nil))
	f.Add(mustNew(f, Policy{Version: "p", Default: parts().Default}).AppendBinary(nil))
	f.Add([]byte{encodingVersion})
	f.Add([]byte("\x01\x01p\x01\x01m\x01\xc0\x84\x3d\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Decode(b)
		if err != nil {
			return
		}
		if !bytes.Equal(p.AppendBinary(nil), b) {
			t.Fatal("accepted, but encoded in other bytes")
		}
		if again, err := New(*p); err != nil || again.Digest() != p.Digest() {
			t.Fatalf("accepted, but New says %v", err)
		}
	})
}
