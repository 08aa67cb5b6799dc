package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"

	"github.com/dchest/siphash"
	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/guard"
)

// A stored entry's Extensions begin with a seal:
//
//	0   1  format version
//	1  16  chain hash of the predecessor; zero where the chain begins
//	17  4  CRC-32C, little endian, of version, predecessor, index, term, type, data, extensions
//	21     the entry's own Extensions
const (
	sealVersion = 1
	sealBytes   = 21
	sealCRC     = 17 // offset
)

// chainKey is the key of the chain hash, SipHash-2-4 with 128 bits. It is no secret: the chain is
// against accidents. It is part of the format, and so never changes.
var chainKey = []byte("quorate log v1..")

// chainHash stands for an entry and all before it.
type chainHash [16]byte

// sealer computes seals, for one goroutine at a time.
type sealer struct {
	chain  hash.Hash
	prefix [sealCRC + 33]byte
}

func newSealer() *sealer { return &sealer{chain: siphash.New128(chainKey)} }

// describe writes what is covered of an entry beside data and extensions.
func (s *sealer) describe(l *raft.Log, extensions int, before chainHash) []byte {
	b := append(s.prefix[:0], sealVersion)
	b = append(b, before[:]...)
	b = binary.LittleEndian.AppendUint64(b, l.Index)
	b = binary.LittleEndian.AppendUint64(b, l.Term)
	b = append(b, byte(l.Type))
	b = binary.LittleEndian.AppendUint64(b, uint64(len(l.Data)))
	return binary.LittleEndian.AppendUint64(b, uint64(extensions))
}

// hash is the chain hash of an entry with its own extensions, given its predecessor's.
func (s *sealer) hash(l *raft.Log, extensions []byte, before chainHash) (h chainHash) {
	s.chain.Reset()
	_, _ = s.chain.Write(s.describe(l, len(extensions), before)) // a hash does not fail
	_, _ = s.chain.Write(l.Data)
	_, _ = s.chain.Write(extensions)
	s.chain.Sum(h[:0])
	return h
}

func (s *sealer) sum(l *raft.Log, extensions []byte, before chainHash) uint32 {
	c := crc32.Update(0, castagnoli, s.describe(l, len(extensions), before))
	if !l.AppendedAt.IsZero() { // only told to people: it is in no chain
		c = crc32.Update(c, castagnoli, binary.LittleEndian.AppendUint64(nil, uint64(l.AppendedAt.UnixNano())))
	}
	c = crc32.Update(c, castagnoli, l.Data)
	return crc32.Update(c, castagnoli, extensions)
}

// seal is the stored form of entries that follow one with the given hash, and the hash of the last. The
// entries themselves stay as they are: Raft sends them to followers at the same time.
func (s *sealer) seal(logs []*raft.Log, before chainHash) ([]*raft.Log, chainHash) {
	size := 0
	for _, l := range logs {
		size += sealBytes + len(l.Extensions)
	}
	buf := make([]byte, 0, size)
	entries := make([]raft.Log, len(logs))
	sealed := make([]*raft.Log, len(logs))
	for i, l := range logs {
		start := len(buf)
		buf = append(buf, sealVersion)
		buf = append(buf, before[:]...)
		buf = binary.LittleEndian.AppendUint32(buf, s.sum(l, l.Extensions, before))
		buf = append(buf, l.Extensions...)
		entries[i] = *l
		entries[i].Extensions = buf[start:len(buf):len(buf)]
		sealed[i] = &entries[i]
		before = s.hash(l, l.Extensions, before)
	}
	return sealed, before
}

var errNoSeal = errors.New("it has no seal")

// unseal gives a stored entry its own form back, and checks that it is the one with that index, whole
// and unchanged. It returns the chain hash of its predecessor.
func (s *sealer) unseal(l *raft.Log, index uint64) (before chainHash, err error) {
	if len(l.Extensions) < sealBytes {
		return before, errNoSeal
	}
	stored := l.Extensions
	extensions := stored[sealBytes:]
	if len(extensions) == 0 {
		extensions = nil
	}
	copy(before[:], stored[1:sealCRC])
	sum := binary.LittleEndian.Uint32(stored[sealCRC:])
	l.Extensions = extensions
	if !guard.On(guard.EntryChecksum) {
		return before, nil
	}
	if s.sum(l, extensions, before) != sum {
		if stored[0] != sealVersion {
			return before, fmt.Errorf("its seal has version %d and this program knows %d: if a newer program "+
				"version ran here, start the program version that wrote it", stored[0], sealVersion)
		}
		return before, errors.New("its checksum is wrong")
	}
	if stored[0] != sealVersion {
		return before, errors.New("its seal's version is damaged")
	}
	if l.Index != index {
		return before, fmt.Errorf("it is entry %d", l.Index)
	}
	return before, nil
}
