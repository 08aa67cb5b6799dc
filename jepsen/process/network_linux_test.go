package process

import (
	"io"
	"net"
	"testing"
	"time"
)

// mustCarry is a node that answers each byte with itself, and a connection to it through the network.
func mustCarry(t *testing.T) (w *Network, n *Node, got chan byte, conn net.Conn) {
	t.Helper()
	base, err := FreePorts(1)
	must(t, err)
	node := NewNode("", t.TempDir(), 0, base)
	n = &node
	l, err := net.Listen("tcp", n.GRPC)
	must(t, err)
	w = NewNetwork()
	must(t, w.Carry(n))
	t.Cleanup(func() { must(t, w.Close()); must(t, l.Close()) })
	got = make(chan byte, 8)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // the test is over
			}
			go func() {
				var b [1]byte
				for {
					if _, err := io.ReadFull(c, b[:]); err != nil {
						return
					}
					got <- b[0]
					if _, err := c.Write(b[:]); err != nil {
						return
					}
				}
			}()
		}
	}()
	conn, err = net.Dial("tcp", n.Dialled.GRPC)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return w, n, got, conn
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ask sends a byte. The answer is there within a time, or it is not.
func ask(t *testing.T, conn net.Conn, b byte, within time.Duration) (answered bool) {
	t.Helper()
	_, err := conn.Write([]byte{b})
	must(t, err)
	return answers(t, conn, within)
}

func answers(t *testing.T, conn net.Conn, within time.Duration) bool {
	t.Helper()
	must(t, conn.SetReadDeadline(time.Now().Add(within)))
	var in [1]byte
	_, err := io.ReadFull(conn, in[:])
	return err == nil
}

// One direction of a link can be stopped: a question that is stopped never comes, one whose answer is stopped does; and
// both arrive when the link carries again.
func TestOneWay(t *testing.T) {
	w, n, got, conn := mustCarry(t)
	if !ask(t, conn, 1, 5*time.Second) || <-got != 1 {
		t.Fatal("nothing is carried")
	}
	w.Set(Outside, n.ID, Condition{Drop: true})
	if ask(t, conn, 2, 50*time.Millisecond) || len(got) != 0 {
		t.Error("a question has come that was stopped")
	}
	if w.Stopped(Outside, n.ID) == 0 {
		t.Error("nothing is said to have been stopped")
	}
	w.Clear()
	if !answers(t, conn, 5*time.Second) || <-got != 2 {
		t.Error("what was stopped has not come after all")
	}
	w.Set(n.ID, Outside, Condition{Drop: true})
	if ask(t, conn, 3, 50*time.Millisecond) {
		t.Error("an answer has come that was stopped")
	}
	if b := <-got; b != 3 {
		t.Errorf("the node got %d, want the question whose answer is stopped", b)
	}
	w.Clear()
	if !answers(t, conn, 5*time.Second) {
		t.Error("the answer has not come after all")
	}
}

// A link can be late: an answer takes at least as long as it is told.
func TestLateLink(t *testing.T) {
	const late = 60 * time.Millisecond
	w, n, _, conn := mustCarry(t)
	w.Set(Outside, n.ID, Condition{Delay: late})
	began := time.Now()
	if !ask(t, conn, 1, 5*time.Second) || time.Since(began) < late {
		t.Errorf("an answer came after %v, and the question should be %v late", time.Since(began), late)
	}
}
