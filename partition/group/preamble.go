package group

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Every connection to a Listener begins with a preamble, which says what it is for:
//
//	magic "QRFT" | version 1 byte | length 2 bytes, big endian | body
//
// The body is four strings, each behind a length byte: cluster id, group id, and the ids of the sending
// and of the addressed replica, which are the nodes' ids where a question is asked. The answer is one
// byte, a refusal; above refusalNone a length byte and a text follow, and the connection is closed.
const (
	preambleMagic   = "QRFT"
	preambleVersion = 1
	// maxIDBytes bounds cluster, group and node ids on the wire.
	maxIDBytes       = 128
	preambleHead     = len(preambleMagic) + 1 + 2
	maxPreambleBytes = 4 * (1 + maxIDBytes)
	maxReasonBytes   = 255
)

// refusal is why a connection is not accepted.
type refusal uint8

const (
	refusalNone refusal = iota
	refusalMalformed
	refusalVersion
	refusalCluster
	refusalNode
	refusalGroup
	refusalBusy
	refusalIdentity
	refusals // how many there are
)

// errMalformed is a preamble that is none.
var errMalformed = errors.New("malformed preamble")

// versionError is a preamble of another version.
type versionError byte

func (v versionError) Error() string {
	return fmt.Sprintf("preamble version %d, this node speaks %d", byte(v), preambleVersion)
}

// preamble is what a connection is for.
type preamble struct {
	cluster, group, from, to string
}

func (p preamble) validate() error {
	for name, id := range map[string]string{
		"cluster id": p.cluster, "group id": p.group, "id of the sender": p.from,
		"id of the addressee": p.to,
	} {
		if id == "" || len(id) > maxIDBytes {
			return fmt.Errorf("%s has %d bytes, it must have 1 to %d", name, len(id), maxIDBytes)
		}
	}
	return nil
}

// node is the node to which the preamble is addressed.
func (p preamble) node() string {
	node, _, _ := strings.Cut(p.to, replicaSeparator)
	return node
}

func (p preamble) append(b []byte) []byte {
	b = append(b, preambleMagic...)
	b = append(b, preambleVersion)
	b = binary.BigEndian.AppendUint16(b, uint16(4+len(p.cluster)+len(p.group)+len(p.from)+len(p.to)))
	for _, id := range []string{p.cluster, p.group, p.from, p.to} {
		b = append(b, byte(len(id)))
		b = append(b, id...)
	}
	return b
}

// introduce sends the preamble and reads the answer; nil when the connection was accepted.
func (p preamble) introduce(conn io.ReadWriter) error {
	if _, err := conn.Write(p.append(nil)); err != nil {
		return fmt.Errorf("send preamble: %w", err)
	}
	return readAnswer(conn)
}

// readPreamble reads exactly the preamble: what follows is the group's.
func readPreamble(r io.Reader) (preamble, error) {
	head := make([]byte, preambleHead)
	if _, err := io.ReadFull(r, head); err != nil {
		return preamble{}, fmt.Errorf("%w: %w", errMalformed, err)
	}
	if !bytes.HasPrefix(head, []byte(preambleMagic)) {
		return preamble{}, fmt.Errorf("%w: it begins with %q", errMalformed, head[:len(preambleMagic)])
	}
	if v := head[len(preambleMagic)]; v != preambleVersion {
		return preamble{}, versionError(v)
	}
	length := int(binary.BigEndian.Uint16(head[len(preambleMagic)+1:]))
	if length > maxPreambleBytes {
		return preamble{}, fmt.Errorf("%w: %d bytes", errMalformed, length)
	}
	body := make([]byte, length)
	if _, err := io.ReadFull(r, body); err != nil {
		return preamble{}, fmt.Errorf("%w: %w", errMalformed, err)
	}
	var p preamble
	for _, id := range []*string{&p.cluster, &p.group, &p.from, &p.to} {
		if len(body) == 0 || len(body) < 1+int(body[0]) {
			return preamble{}, fmt.Errorf("%w: it is cut short", errMalformed)
		}
		*id, body = string(body[1:1+body[0]]), body[1+int(body[0]):]
	}
	if len(body) != 0 {
		return preamble{}, fmt.Errorf("%w: %d bytes too many", errMalformed, len(body))
	}
	if err := p.validate(); err != nil {
		return preamble{}, fmt.Errorf("%w: %w", errMalformed, err)
	}
	return p, nil
}

// writeAnswer accepts a connection, or refuses it with a reason.
func writeAnswer(w io.Writer, code refusal, reason string) error {
	answer := []byte{byte(code)}
	if code != refusalNone {
		reason = reason[:min(len(reason), maxReasonBytes)]
		answer = append(answer, byte(len(reason)))
		answer = append(answer, reason...)
	}
	_, err := w.Write(answer)
	return err
}

// readAnswer is nil when the connection was accepted.
func readAnswer(r io.Reader) error {
	var b [1]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return fmt.Errorf("no answer to the preamble: %w", err)
	}
	if refusal(b[0]) == refusalNone {
		return nil
	}
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return fmt.Errorf("connection refused without a reason: %w", err)
	}
	reason := make([]byte, b[0])
	if _, err := io.ReadFull(r, reason); err != nil {
		return fmt.Errorf("connection refused, and the reason was cut short: %w", err)
	}
	return fmt.Errorf("connection refused: %q", reason)
}
