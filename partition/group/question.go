package group

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// A question is asked of a node's process on its Raft socket, whether or not it has a group yet: what a
// start has to know before it may open one, and what replicas compare. After the preamble, whose group is
// questionGroup, question and answer follow, each behind a length of 4 bytes, big endian.
const (
	questionGroup = "@node"
	// maxQuestionBytes bounds a question and an answer.
	maxQuestionBytes = 256 << 10
	// questionTimeout bounds one question, both ways.
	questionTimeout = 2 * time.Second
)

// Anyone stands for whichever node of the cluster is reached at an address, where a question is asked.
const Anyone = "*"

// ErrNoAnswer wraps every reason for which a question was not answered.
var ErrNoAnswer = errors.New("no answer")

// Ask asks the node at addr, or Anyone there, a question, which the Answer of its Listener answers. It takes
// two seconds at most. Errors wrap ErrNoAnswer.
func (l *Listener) Ask(ctx context.Context, node, addr string, question []byte) ([]byte, error) {
	answer, err := l.ask(ctx, node, addr, question)
	if err != nil {
		return nil, fmt.Errorf("%w from node %s at %s: %w", ErrNoAnswer, node, addr, err)
	}
	return answer, nil
}

func (l *Listener) ask(ctx context.Context, node, addr string, question []byte) (_ []byte, err error) {
	p := preamble{cluster: l.config.Cluster, group: questionGroup, from: l.config.Node, to: node}
	if err := p.validate(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, questionTimeout)
	defer cancel()
	var d net.Dialer
	raw, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	defer func() { _ = raw.Close() }() // what was to be read has been read
	stop := context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	conn := raw
	if s := l.config.Secure; s != nil {
		expected := node
		if node == Anyone {
			expected = ""
		}
		if conn, err = s.Dial(ctx, raw, expected, addr); err != nil {
			return nil, err
		}
	}
	if err := p.introduce(conn); err != nil {
		return nil, err
	}
	if err := writeFrame(conn, question); err != nil {
		return nil, err
	}
	return readFrame(conn)
}

// answer serves a connection that asks; the caller closes it.
func (l *Listener) answer(conn net.Conn, from string) error {
	if l.config.Answer == nil {
		return l.refuse(conn, refusalGroup, "this node answers no questions")
	}
	if err := writeAnswer(conn, refusalNone, ""); err != nil {
		return err
	}
	question, err := readFrame(conn) // within the time that the preamble has
	if err != nil {
		return err
	}
	answer := l.config.Answer(from, question)
	if err := writeFrame(conn, answer); err != nil {
		return err
	}
	return conn.Close()
}

func writeFrame(w io.Writer, body []byte) error {
	if len(body) > maxQuestionBytes {
		return fmt.Errorf("%d bytes, at most %d are possible", len(body), maxQuestionBytes)
	}
	frame := binary.BigEndian.AppendUint32(nil, uint32(len(body)))
	_, err := w.Write(append(frame, body...))
	return err
}

func readFrame(r io.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	length := binary.BigEndian.Uint32(head[:])
	if length > maxQuestionBytes {
		return nil, fmt.Errorf("%d bytes, at most %d are possible", length, maxQuestionBytes)
	}
	body := make([]byte, length)
	_, err := io.ReadFull(r, body)
	return body, err
}
