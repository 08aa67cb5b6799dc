package gossip

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/hashicorp/go-msgpack/v2/codec"
)

// The types of memberlist's messages that Quorate's nodes send.
const (
	pingType         = 0
	indirectPingType = 1
	ackType          = 2
	suspectType      = 3
	aliveType        = 4
	deadType         = 5
	pushPullType     = 6
	compoundType     = 7
	nackType         = 11
	checksumType     = 12
	errorType        = 13
)

// checksumBytes is the length of the checksum behind checksumType.
const checksumBytes = 4

// maxStates bounds the nodes in one exchange of states: also those that are gone, of which memberlist keeps some.
const maxStates = 2 * maxNodes

// versionsLength is the number of protocol versions that a node gives.
const versionsLength = 6

var errMessage = errors.New("a malformed message, or of a kind that is not used")

// inspectPacket checks a packet's content for what memberlist must not see: messages of other types, and
// compounds in compounds.
func inspectPacket(b []byte) error {
	if len(b) > checksumBytes && b[0] == checksumType {
		b = b[1+checksumBytes:]
	}
	if len(b) == 0 {
		return errMessage
	}
	if b[0] != compoundType {
		return inspectMessage(b)
	}
	if len(b) < 2 || len(b) < 2+2*int(b[1]) {
		return errMessage
	}
	lengths, parts := b[2:2+2*int(b[1])], b[2+2*int(b[1]):]
	for ; len(lengths) > 0; lengths = lengths[2:] {
		n := int(binary.BigEndian.Uint16(lengths))
		if n > len(parts) {
			return errMessage
		}
		if err := inspectMessage(parts[:n]); err != nil {
			return err
		}
		parts = parts[n:]
	}
	return nil
}

func inspectMessage(b []byte) error {
	if len(b) == 0 {
		return errMessage
	}
	switch b[0] {
	case pingType, indirectPingType, ackType, nackType, suspectType, aliveType, deadType:
		return nil
	default:
		return errMessage
	}
}

// inspectRequest checks what a stream that was accepted asks.
func inspectRequest(b []byte) error { return inspectStream(b, pingType) }

// inspectAnswer checks what came back on a stream that was dialled.
func inspectAnswer(b []byte) error { return inspectStream(b, ackType, errorType) }

func inspectStream(b []byte, also ...byte) error {
	switch {
	case len(b) == 0:
		return errMessage
	case bytes.IndexByte(also, b[0]) >= 0:
		return nil
	case b[0] == pushPullType:
		return inspectStates(b[1:])
	default:
		return errMessage
	}
}

// inspectStates checks an exchange of states: memberlist makes room for as many as are announced, and takes the
// versions for complete.
func inspectStates(b []byte) error {
	var header struct {
		Nodes        int
		UserStateLen int
		Join         bool
	}
	in := bytes.NewReader(b)
	decoder := codec.NewDecoder(in, &codec.MsgpackHandle{})
	if err := decoder.Decode(&header); err != nil {
		return errMessage
	}
	if header.Nodes < 0 || header.Nodes > maxStates || header.UserStateLen != 0 {
		return fmt.Errorf("%w: %d nodes, %d bytes beside", errMessage, header.Nodes, header.UserStateLen)
	}
	for range header.Nodes {
		var node struct {
			Name        string
			Addr        []byte
			Port        uint16
			Meta        []byte
			Incarnation uint32
			State       int
			Vsn         []uint8
		}
		if err := decoder.Decode(&node); err != nil {
			return errMessage
		}
		if len(node.Vsn) != versionsLength || len(node.Name) > maxIDBytes || len(node.Meta) > maxMetaBytes {
			return errMessage
		}
	}
	if in.Len() != 0 {
		return errMessage
	}
	return nil
}
