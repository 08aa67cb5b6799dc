package gossip

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// The framing of memberlist's protocol, which its messages are wrapped in:
//
//	packet:            label, sealed
//	request stream:    label, encryptedType, length (4 bytes, big endian), sealed
//	answer to it:             encryptedType, length, sealed
//	label:             labelType, length (1 byte), the label itself
//	sealed:            sealVersion, nonce, AES-GCM ciphertext and tag
//
// The label, in a stream after type and length, is what the tag also covers.
const (
	labelType     = 244
	encryptedType = 10
	sealVersion   = 1
	frameHead     = 5 // type and length
)

const (
	keyBytes = 32 // AES-256
	// maxPacketBytes bounds a packet: memberlist fills them up to 1,400 bytes.
	maxPacketBytes = 4096
	// maxStreamBytes bounds what is sealed in a stream: the states of maxNodes nodes of the greatest length.
	maxStreamBytes = 1 << 20
)

var (
	errForeign = errors.New("of another cluster")
	errKey     = errors.New("not sealed with this cluster's key")
	errTooLong = errors.New("too long")
)

// seal opens what nodes of this cluster have sealed.
type seal struct {
	label string
	head  []byte // the label as it is sent
	key   []byte
	aead  cipher.AEAD
}

// newSeal is the seal of a cluster. Without a key it is one that everybody can make.
func newSeal(cluster string, key []byte) (*seal, error) {
	if key == nil {
		sum := sha256.Sum256([]byte("quorate gossip without a key\x00" + cluster))
		key = sum[:]
	}
	if len(key) != keyBytes {
		return nil, fmt.Errorf("the gossip key has %d bytes: give one of %d", len(key), keyBytes)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	head := append([]byte{labelType, byte(len(cluster))}, cluster...)
	return &seal{label: cluster, head: head, key: bytes.Clone(key), aead: aead}, nil
}

// packet opens a packet. It leaves the packet as it is.
func (s *seal) packet(p []byte) ([]byte, error) {
	sealed, ok := bytes.CutPrefix(p, s.head)
	if !ok {
		return nil, errForeign
	}
	return s.open(sealed, []byte(s.label))
}

// request reads and opens a request. It returns all that was read, and what was sealed in it.
func (s *seal) request(from io.Reader) (all, plain []byte, err error) {
	head := make([]byte, len(s.head))
	if _, err := io.ReadFull(from, head); err != nil {
		return nil, nil, err
	}
	if !bytes.Equal(head, s.head) {
		return nil, nil, errForeign
	}
	return s.frame(from, head)
}

// answer reads and opens the answer to a request, as request does.
func (s *seal) answer(from io.Reader) (all, plain []byte, err error) { return s.frame(from, nil) }

// frame reads a frame, whose bytes it appends to those before it, and opens it.
func (s *seal) frame(from io.Reader, before []byte) (all, plain []byte, err error) {
	buffer := bytes.NewBuffer(before)
	if _, err := io.CopyN(buffer, from, frameHead); err != nil {
		return nil, nil, err
	}
	head := buffer.Bytes()[len(before):]
	if head[0] != encryptedType {
		return nil, nil, errKey
	}
	length := binary.BigEndian.Uint32(head[1:])
	if int64(length) > maxStreamBytes+int64(s.overhead()) {
		return nil, nil, errTooLong
	}
	// The buffer grows with what comes, not with what is announced.
	if _, err := io.CopyN(buffer, from, int64(length)); err != nil {
		return nil, nil, err
	}
	all = buffer.Bytes()
	frame := all[len(before):]
	covered := append(bytes.Clone(frame[:frameHead]), s.label...)
	plain, err = s.open(frame[frameHead:], covered)
	return all, plain, err
}

// overhead is how much longer than its content something sealed is.
func (s *seal) overhead() int { return 1 + s.aead.NonceSize() + s.aead.Overhead() }

func (s *seal) open(sealed, covered []byte) ([]byte, error) {
	if len(sealed) < s.overhead() || sealed[0] != sealVersion {
		return nil, errKey
	}
	nonce, ciphertext := sealed[1:1+s.aead.NonceSize()], sealed[1+s.aead.NonceSize():]
	plain, err := s.aead.Open(nil, nonce, ciphertext, covered)
	if err != nil {
		return nil, errKey
	}
	return plain, nil
}
