package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// A snapshot is a magic number with the format's version, then frames: the head, the elements of each
// list in order, and the digest. A frame is a length and a CRC-32C, four bytes each, little-endian, and its
// payload: a tag, then elements of that kind.
var snapshotMagic = [8]byte{'Q', 'U', 'O', 'R', 'C', 'T', 'L', 3}

const (
	// frameElements bounds the elements of a frame, maxFrameBytes its size.
	frameElements = 64
	maxFrameBytes = 64 << 20
)

// WriteTo writes the state as a snapshot.
func (s *State) WriteTo(w io.Writer) (int64, error) {
	out := &frames{to: w}
	out.write(snapshotMagic[:])
	head := &codec{b: []byte{tagHead}}
	head.head(s)
	out.frame(head.b)
	writeList(out, tagNode, s.Nodes, (*codec).node)
	writeList(out, tagPartition, s.Partitions, (*codec).partition)
	writeList(out, tagPlan, s.Plans, (*codec).plan)
	writeList(out, tagEnded, s.Ended, (*codec).plan)
	writeList(out, tagRevision, s.Revisions, (*codec).revision)
	writeList(out, tagRecorded, s.recorded, (*codec).recorded)
	writeList(out, tagToken, s.Tokens, (*codec).token)
	digest := s.Digest()
	out.frame(append([]byte{tagEnd}, digest[:]...))
	return out.written, out.err
}

// frames writes until the first error.
type frames struct {
	to      io.Writer
	written int64
	err     error
}

func (f *frames) write(b []byte) {
	if f.err != nil {
		return
	}
	n, err := f.to.Write(b)
	f.written, f.err = f.written+int64(n), err
}

func (f *frames) frame(payload []byte) {
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(payload)))
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(payload, castagnoli))
	f.write(append(b, payload...))
}

func writeList[E any](f *frames, tag byte, list []*E, each func(*codec, *E)) {
	for len(list) > 0 {
		w := &codec{b: []byte{tag}}
		for _, e := range list[:min(len(list), frameElements)] {
			each(w, e)
		}
		f.frame(w.b)
		list = list[min(len(list), frameElements):]
	}
}

// Restore reads what State.WriteTo wrote, to its end and no further. It refuses anything else.
func Restore(from io.Reader) (*Machine, error) {
	m, err := restore(from)
	if err != nil {
		return nil, fmt.Errorf("snapshot of the control state: %w", err)
	}
	return m, nil
}

func restore(from io.Reader) (*Machine, error) {
	var magic [8]byte
	if _, err := io.ReadFull(from, magic[:]); err != nil {
		return nil, err
	}
	if magic != snapshotMagic {
		return nil, fmt.Errorf("it begins with %q, this program knows %q: use the one that wrote it", magic, snapshotMagic)
	}
	m := New()
	for last := byte(0); ; {
		payload, err := readFrame(from)
		if err != nil {
			return nil, err
		}
		tag := payload[0]
		if tag < last || last == 0 && tag != tagHead || tag == tagHead && last != 0 {
			return nil, fmt.Errorf("frame %d is out of order", tag)
		}
		last = tag
		r := &codec{b: payload[1:], reading: true}
		if tag == tagEnd {
			digest := m.s.Digest()
			if !bytes.Equal(digest[:], r.b) {
				return nil, errors.New("its digest is not that of its contents")
			}
			return m, m.s.validate()
		}
		if err := m.read(tag, r); err != nil {
			return nil, err
		}
	}
}

func readFrame(from io.Reader) ([]byte, error) {
	var head [8]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(head[:4])
	if n == 0 || n > maxFrameBytes {
		return nil, fmt.Errorf("a frame of %d bytes", n)
	}
	var payload bytes.Buffer // grows with what is really there
	if got, err := io.CopyN(&payload, from, int64(n)); err != nil {
		return nil, fmt.Errorf("a frame of %d bytes ends after %d: %w", n, got, err)
	}
	if crc32.Checksum(payload.Bytes(), castagnoli) != binary.LittleEndian.Uint32(head[4:]) {
		return nil, errors.New("the checksum of a frame is wrong")
	}
	return payload.Bytes(), nil
}

// read takes one frame's elements.
func (m *Machine) read(tag byte, r *codec) error {
	s := m.s
	if tag == tagHead {
		r.head(s)
		return r.end()
	}
	for len(r.b) > 0 {
		switch tag {
		case tagNode:
			readElement(r, &s.Nodes, &s.elements, tag, (*codec).node)
		case tagPartition:
			readElement(r, &s.Partitions, &s.elements, tag, (*codec).partition)
		case tagPlan:
			readElement(r, &s.Plans, &s.elements, tag, (*codec).plan)
		case tagEnded:
			readElement(r, &s.Ended, &s.elements, tag, (*codec).plan)
		case tagRevision:
			readElement(r, &s.Revisions, &s.elements, tag, (*codec).revision)
		case tagRecorded:
			readElement(r, &s.recorded, &s.elements, tag, (*codec).recorded)
			e := s.recorded[len(s.recorded)-1]
			m.ids[e.id] = e
		case tagToken:
			readElement(r, &s.Tokens, &s.elements, tag, (*codec).token)
		default:
			return fmt.Errorf("frame %d is unknown: use the program that wrote it", tag)
		}
	}
	return r.end()
}

func readElement[E any](r *codec, list *[]*E, elements *sum, tag byte, each func(*codec, *E)) {
	e := new(E)
	each(r, e)
	*list = append(*list, e)
	elements.add(hashOf(tag, e, each))
}

// validate checks what look-ups rest on: the order of the lists, and that no slot has two owners.
func (s *State) validate() error {
	if !ascending(s.Nodes, nodeID) || !ascending(s.Partitions, partitionID) || !ascending(s.Plans, planID) ||
		!ascending(s.Tokens, tokenID) {
		return errors.New("a list is out of order")
	}
	for i, r := range s.Revisions {
		if i > 0 && r.Number != s.Revisions[i-1].Number+1 {
			return errors.New("the policy history has a gap")
		}
	}
	var owned [1 << 14]bool
	for _, p := range s.Partitions {
		for _, r := range p.Ranges {
			if r.First > r.Last || int(r.Last) >= len(owned) || r.Epoch == 0 {
				return fmt.Errorf("slots %d to %d under epoch %d are no range", r.First, r.Last, r.Epoch)
			}
			for slot := int(r.First); slot <= int(r.Last); slot++ {
				if owned[slot] {
					return fmt.Errorf("slot %d has two owners", slot)
				}
				owned[slot] = true
			}
		}
	}
	return nil
}

func ascending[E any, K ~uint64 | ~string](list []*E, keyOf func(*E) K) bool {
	for i := 1; i < len(list); i++ {
		if keyOf(list[i-1]) >= keyOf(list[i]) {
			return false
		}
	}
	return true
}
