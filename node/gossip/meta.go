package gossip

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strconv"
	"unicode"
	"unicode/utf8"

	"github.com/hashicorp/memberlist"
)

const (
	// metaVersion is the first byte of an encoded Meta. Fields may be added behind the present ones without a new
	// version, as a reader leaves out what follows those that it knows.
	metaVersion = 1
	// maxIDBytes bounds a node's id.
	maxIDBytes = 63
	// maxMetaBytes bounds an encoded Meta.
	maxMetaBytes = memberlist.MetaMaxSize
)

// Meta is what a node says about itself. The addresses are host:port, as others dial them; any of them may be
// empty.
type Meta struct {
	ID       string // the node's id: letters, digits, '.', '_' and '-', at most 63
	Instance string // which data directory it runs on
	GRPC     string
	HTTP     string
	Raft     string
	Gossip   string
	Zone     string
}

// fields are those that are encoded, in their order; the id is memberlist's name of the node. Addresses are side
// by side, since they begin alike.
func (m *Meta) fields() []*string {
	return []*string{&m.Instance, &m.Zone, &m.GRPC, &m.HTTP, &m.Raft, &m.Gossip}
}

// validate checks what must hold on both sides of the wire: the values end up in logs, tables and dialers.
func (m Meta) validate() error {
	if err := validID(m.ID); err != nil {
		return err
	}
	for _, text := range []string{m.Instance, m.Zone} {
		if !printable(text) {
			return fmt.Errorf("%q: use printable characters", text)
		}
	}
	for _, addr := range []string{m.GRPC, m.HTTP, m.Raft, m.Gossip} {
		if addr == "" {
			continue
		}
		host, port, err := net.SplitHostPort(addr)
		if err != nil || host == "" || !printable(addr) {
			return fmt.Errorf("%q: use host:port", addr)
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return fmt.Errorf("%q: use a port from 1 to 65535", addr)
		}
	}
	return nil
}

func validID(id string) error {
	ok := id != "" && len(id) <= maxIDBytes
	for i := 0; i < len(id) && ok; i++ {
		c := id[i]
		ok = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-'
	}
	if !ok {
		return fmt.Errorf("node id %.80q: use letters, digits, '.', '_' and '-', at most %d", id, maxIDBytes)
	}
	return nil
}

func printable(s string) bool {
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return false
		}
	}
	return utf8.ValidString(s)
}

// encode is the Meta without its id. Each field is written as the number of bytes that it has in common with the
// begin of the field before, then the rest.
func (m Meta) encode() ([]byte, error) {
	if err := m.validate(); err != nil {
		return nil, err
	}
	out := []byte{metaVersion}
	previous := ""
	for _, field := range m.fields() {
		shared := 0
		for shared < min(len(previous), len(*field)) && previous[shared] == (*field)[shared] {
			shared++
		}
		out = binary.AppendUvarint(out, uint64(shared))
		out = binary.AppendUvarint(out, uint64(len(*field)-shared))
		out = append(out, (*field)[shared:]...)
		previous = *field
	}
	if len(out) > maxMetaBytes {
		return nil, fmt.Errorf("the node's instance, zone and addresses take %d bytes, gossip carries %d: use "+
			"shorter host names, or addresses", len(out), maxMetaBytes)
	}
	return out, nil
}

var errMeta = errors.New("malformed description of a node")

// decodeMeta reads what encode wrote for the node of that id, and checks it.
func decodeMeta(id string, b []byte) (Meta, error) {
	m := Meta{ID: id}
	if len(b) == 0 || len(b) > maxMetaBytes {
		return m, errMeta
	}
	if b[0] != metaVersion {
		return m, fmt.Errorf("a node described in version %d, this one knows %d: upgrade this one", b[0], metaVersion)
	}
	b = b[1:]
	previous := ""
	for _, field := range m.fields() {
		shared, n := binary.Uvarint(b)
		if n <= 0 || shared > uint64(len(previous)) {
			return m, errMeta
		}
		b = b[n:]
		rest, n := binary.Uvarint(b)
		if n <= 0 || rest > uint64(len(b)-n) {
			return m, errMeta
		}
		b = b[n:]
		*field = previous[:shared] + string(b[:rest])
		b = b[rest:]
		previous = *field
	}
	return m, m.validate()
}
