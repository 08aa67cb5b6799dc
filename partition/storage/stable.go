package storage

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/hashicorp/raft"
	"go.etcd.io/bbolt"
)

// The keys under which Raft keeps its vote. It writes the term first, then the candidate.
var (
	keyVoteTerm      = []byte("LastVoteTerm")
	keyVoteCandidate = []byte("LastVoteCand")
)

var stableBucket = []byte("stable")

// stable keeps a group's term and vote.
type stable struct {
	db    *bbolt.DB
	file  string
	guard *failStop

	mu       sync.Mutex // guards voteTerm
	voteTerm []byte     // the term of a vote whose candidate is still to come; nil none
}

var _ raft.StableStore = (*stable)(nil)

func openStable(file string, guard *failStop) (*stable, error) {
	db, err := bbolt.Open(file, 0o640, boltOptions())
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", file, err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists(stableBucket)
		return err
	})
	if err != nil {
		_ = db.Close() // the first error is the one to report
		return nil, fmt.Errorf("open %s: %w", file, err)
	}
	return &stable{db: db, file: file, guard: guard}, nil
}

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
	err := s.guard.do(s.file, "write", func() error {
		return s.db.Update(func(tx *bbolt.Tx) error {
			b := tx.Bucket(stableBucket)
			if voteTerm != nil {
				if err := b.Put(keyVoteTerm, voteTerm); err != nil {
					return err
				}
			}
			return b.Put(key, value)
		})
	})
	if err == nil && voteTerm != nil {
		s.voteTerm = nil
	}
	return err
}

// SetUint64 writes a number durably, except for the term of a vote: that waits for its candidate.
func (s *stable) SetUint64(key []byte, value uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	number := binary.BigEndian.AppendUint64(nil, value)
	if bytes.Equal(key, keyVoteTerm) {
		s.voteTerm = number
		return s.guard.err()
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
	var value []byte
	err := s.db.View(func(tx *bbolt.Tx) error {
		value = bytes.Clone(tx.Bucket(stableBucket).Get(key))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", s.file, err)
	}
	return value, nil
}

// GetUint64 is the number of a key, 0 when it was never set.
func (s *stable) GetUint64(key []byte) (uint64, error) {
	value, err := s.Get(key)
	if err != nil || value == nil {
		return 0, err
	}
	if len(value) != 8 {
		return 0, fmt.Errorf("%s: %q has %d bytes, expected 8: the file is damaged, replace this replica",
			s.file, key, len(value))
	}
	return binary.BigEndian.Uint64(value), nil
}

func (s *stable) Close() error { return s.db.Close() }
