package storage

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/chaos"
	"github.com/quorate/quorate/internal/guard"
)

// The keys under which Raft keeps its term, and its vote: it writes the vote's term first, then the
// candidate.
var (
	keyTerm          = []byte("CurrentTerm")
	keyVoteTerm      = []byte("LastVoteTerm")
	keyVoteCandidate = []byte("LastVoteCand")
)

// stable keeps a group's term and vote. A value is stored with a CRC-32C of key and value behind it.
type stable struct {
	table Table
	file  string
	stop  *failStop
	floor *floor

	mu       sync.Mutex // guards voteTerm
	voteTerm []byte     // the term of a vote whose candidate is still to come; nil none
}

var _ raft.StableStore = (*stable)(nil)

// Set writes a value durably. The candidate of a vote takes the vote's term along, in one transaction.
func (s *stable) Set(key, value []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.put(key, value)
}

// put needs mu.
func (s *stable) put(key, value []byte) error {
	voteTerm := s.voteTerm
	if !bytes.Equal(key, keyVoteCandidate) {
		voteTerm = nil
	}
	values := []Pair{{key, value}}
	if voteTerm != nil {
		values = append(values, Pair{keyVoteTerm, voteTerm})
	}
	sealed := make([]Pair, len(values))
	for i, p := range values {
		sealed[i] = Pair{p.Key, sealValue(p.Key, p.Value)}
	}
	err := s.stop.do(s.file, "write", func() error {
		chaos.SlowSync()
		if err := s.table.Put(sealed...); err != nil {
			return err
		}
		return s.floor.note(func(r *floorRecord) { r.copyVotes(values) })
	})
	if err == nil && voteTerm != nil {
		s.voteTerm = nil
	}
	return err
}

// copyVotes takes what concerns term and vote over into the floor.
func (r *floorRecord) copyVotes(values []Pair) {
	for _, p := range values {
		switch {
		case bytes.Equal(p.Key, keyTerm) && len(p.Value) == 8:
			r.term = binary.BigEndian.Uint64(p.Value)
		case bytes.Equal(p.Key, keyVoteTerm) && len(p.Value) == 8:
			r.voteTerm = binary.BigEndian.Uint64(p.Value)
		case bytes.Equal(p.Key, keyVoteCandidate):
			r.candidate = string(p.Value)
		}
	}
}

// SetUint64 writes a number durably, except for the term of a vote: that waits for its candidate.
func (s *stable) SetUint64(key []byte, value uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	number := binary.BigEndian.AppendUint64(nil, value)
	if bytes.Equal(key, keyVoteTerm) && guard.On(guard.VoteInOneWrite) {
		s.voteTerm = number
		return s.stop.err()
	}
	return s.put(key, number)
}

// Get is the value of a key, nil when it was never set.
func (s *stable) Get(key []byte) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if bytes.Equal(key, keyVoteTerm) && s.voteTerm != nil {
		return bytes.Clone(s.voteTerm), nil
	}
	sealed, err := s.table.Get(key)
	if err != nil || sealed == nil {
		return nil, err
	}
	n := len(sealed) - 4
	if n < 0 || binary.LittleEndian.Uint32(sealed[n:]) != valueSum(key, sealed[:n]) {
		return nil, damaged(fmt.Errorf("%s: the checksum of %q is wrong", s.file, key))
	}
	return sealed[:n:n], nil
}

// GetUint64 is the number of a key, 0 when it was never set.
func (s *stable) GetUint64(key []byte) (uint64, error) {
	value, err := s.Get(key)
	if err != nil || value == nil {
		return 0, err
	}
	if len(value) != 8 {
		return 0, damaged(fmt.Errorf("%s: %q has %d bytes, expected 8", s.file, key, len(value)))
	}
	return binary.BigEndian.Uint64(value), nil
}

func (s *stable) Close() error { return s.table.Close() }

// sealValue is the stored form of a value.
func sealValue(key, value []byte) []byte {
	b := append(make([]byte, 0, len(value)+4), value...)
	return binary.LittleEndian.AppendUint32(b, valueSum(key, value))
}

func valueSum(key, value []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, value)
}
