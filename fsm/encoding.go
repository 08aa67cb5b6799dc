package fsm

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// errCut says that an encoding ends before its contents do.
var errCut = errors.New("cut short")

func appendString(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

func appendCharge(b []byte, c *Charge) []byte {
	b = appendString(b, c.Class)
	b = appendString(b, c.Tier)
	return binary.AppendVarint(b, c.Cost)
}

// decoder reads what the append functions wrote. The first error stays, and every later read returns
// a zero, so a decoder of a whole message checks once at its end.
type decoder struct {
	b   []byte
	err error
	// text, if it is set, is what b was as a string, whose parts string returns: an entry's checks have thousands of
	// strings that live as long as it does. Whoever keeps one longer clones it, so as not to keep all of them.
	text string
}

func (d *decoder) fail(err error) {
	if d.err == nil {
		d.err = err
	}
	d.b = nil
}

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.fail(errCut)
		return 0
	}
	v := d.b[0]
	d.b = d.b[1:]
	return v
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.fail(errCut)
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.fail(errCut)
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) bytes(n uint64) []byte {
	if n > uint64(len(d.b)) {
		d.fail(errCut)
		return nil
	}
	v := d.b[:n]
	d.b = d.b[n:]
	return v
}

func (d *decoder) string() string {
	v := d.bytes(d.uvarint())
	if d.text == "" {
		return string(v)
	}
	end := len(d.text) - len(d.b)
	return d.text[end-len(v) : end]
}

func (d *decoder) time() Time { return Time(d.varint()) }

// count reads a number of elements that each take at least one byte.
func (d *decoder) count() int {
	n := d.uvarint()
	if n > uint64(len(d.b)) {
		d.fail(fmt.Errorf("%d elements in %d bytes", n, len(d.b)))
		return 0
	}
	return int(n)
}

func (d *decoder) array(to []byte) { copy(to, d.bytes(uint64(len(to)))) }

func (d *decoder) charge() Charge {
	return Charge{Class: d.string(), Tier: d.string(), Cost: d.varint()}
}

// end checks that nothing is left.
func (d *decoder) end() error {
	if d.err == nil && len(d.b) > 0 {
		return fmt.Errorf("%d bytes too many", len(d.b))
	}
	return d.err
}
