package gossip

import (
	"bytes"
	"compress/lzw"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"
)

// sealed is what a holder of the key would send as a packet.
func (s *seal) sealed(t *testing.T, plain []byte) []byte {
	t.Helper()
	return append(bytes.Clone(s.head), s.body(t, plain, []byte(s.label))...)
}

// framed is what a holder of the key would send on a stream.
func (s *seal) framed(t *testing.T, plain []byte) []byte {
	t.Helper()
	head := binary.BigEndian.AppendUint32([]byte{encryptedType}, uint32(len(plain)+s.overhead()))
	body := s.body(t, plain, append(bytes.Clone(head), s.label...))
	return append(append(bytes.Clone(s.head), head...), body...)
}

func (s *seal) body(t *testing.T, plain, covered []byte) []byte {
	t.Helper()
	out := make([]byte, 1+s.aead.NonceSize())
	out[0] = sealVersion
	if _, err := rand.Read(out[1:]); err != nil {
		t.Fatal(err)
	}
	return s.aead.Seal(out, out[1:], plain, covered)
}

// pack is a message of a type: msgpack of the values.
func pack(t *testing.T, kind byte, values ...any) []byte {
	t.Helper()
	out := bytes.NewBuffer([]byte{kind})
	encoder := codec.NewEncoder(out, &codec.MsgpackHandle{})
	for _, v := range values {
		if err := encoder.Encode(v); err != nil {
			t.Fatal(err)
		}
	}
	return out.Bytes()
}

// squeezed is a message in memberlist's compression.
func squeezed(t *testing.T, message []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := lzw.NewWriter(&b, lzw.LSB, 8)
	if _, err := w.Write(message); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return pack(t, 9, map[string]any{"Algo": 0, "Buf": b.Bytes()})
}

type fields = map[string]any

// header announces states.
func header(nodes, user int) fields {
	return fields{"Nodes": nodes, "UserStateLen": user, "Join": true}
}

// state is that of a node in an exchange.
func state(change fields) fields {
	f := fields{
		"Name": "x", "Addr": []byte{127, 0, 0, 1}, "Port": 1, "Meta": []byte{}, "Incarnation": 1, "State": 0,
		"Vsn": []byte{1, 5, 2, 0, 0, 0},
	}
	for k, v := range change {
		f[k] = v
	}
	return f
}

// hostileStreams are requests which memberlist v0.6.0 crashes at, or takes without bound.
func hostileStreams(t *testing.T) map[string][]byte {
	return map[string][]byte{
		"nothing":                 {},
		"no versions":             pack(t, pushPullType, header(1, 0), state(fields{"Vsn": []byte{}})),
		"one version":             pack(t, pushPullType, header(1, 0), state(fields{"Vsn": []byte{1}})),
		"many nodes":              pack(t, pushPullType, header(1<<20, 0)),
		"fewer than announced":    pack(t, pushPullType, header(2, 0), state(nil)),
		"more than announced":     pack(t, pushPullType, header(1, 0), state(nil), state(nil)),
		"negative":                pack(t, pushPullType, header(-1, 0)),
		"user state":              pack(t, pushPullType, header(0, 20<<20)),
		"long name":               pack(t, pushPullType, header(1, 0), state(fields{"Name": string(make([]byte, 64))})),
		"long description":        pack(t, pushPullType, header(1, 0), state(fields{"Meta": make([]byte, 513)})),
		"huge user message":       pack(t, 8, fields{"UserMsgLen": int64(1) << 62}),
		"compressed":              squeezed(t, pack(t, pingType, fields{"SeqNo": 1})),
		"compressed nothing":      squeezed(t, nil),
		"compressed without end":  squeezed(t, make([]byte, 8<<20)),
		"an unknown type":         {200},
		"an answer":               pack(t, ackType, fields{"SeqNo": 1}),
		"an error":                pack(t, errorType, fields{"Error": "x"}),
		"a list without end":      append([]byte{pushPullType}, bytes.Repeat([]byte{0xdd, 0xff, 0xff, 0xff, 0xff}, 2000)...),
		"a length that is a lie":  {pushPullType, 0xc6, 0xff, 0xff, 0xff, 0xff},
		"a packet's kind":         pack(t, suspectType, fields{"Node": "b"}),
		"states without a header": {pushPullType},
	}
}

// hostilePackets are the like in packets.
func hostilePackets(t *testing.T) map[string][]byte {
	deep := pack(t, pingType, fields{"SeqNo": 1})
	for range 200 {
		deep = append([]byte{compoundType, 1, byte(len(deep) >> 8), byte(len(deep))}, deep...)
	}
	return map[string][]byte{
		"nothing":                {},
		"only a checksum":        {checksumType, 0, 0, 0, 0},
		"compressed":             squeezed(t, pack(t, pingType, fields{"SeqNo": 1})),
		"compressed without end": squeezed(t, make([]byte, 1<<20)),
		"a user's message":       {8, 'x'},
		"compounds in compounds": deep,
		"an empty part":          {compoundType, 1, 0, 0},
		"a part that is cut":     {compoundType, 1, 0, 9, pingType},
		"parts without lengths":  {compoundType, 200},
		"states":                 pack(t, pushPullType, header(0, 0)),
		"an unknown type":        {200},
	}
}

// Shows that who has the key can neither crash a node nor get it to take what memberlist does not bound: each
// such stream and packet is refused, and the node goes on. Without the inspection some of these end the process.
func TestHostileHolderOfTheKey(t *testing.T) {
	a := mustOpen(t, configFor("a"))
	b := mustOpen(t, configFor("b", a.Addr()))
	awaitAll(t, a, b)
	refused := a.Refused()
	next := func(name string, send func()) {
		t.Helper()
		send()
		refused++
		await(t, name+" is refused", func() bool { return a.Refused() >= refused })
	}
	for name, plain := range hostileStreams(t) {
		next(name, func() {
			conn := mustDial(t, a)
			mustWrite(t, conn, a.transport.seal.framed(t, plain))
			if n, err := conn.Read(make([]byte, 1)); n > 0 || err == nil {
				t.Errorf("%s: there is an answer", name)
			}
		})
	}
	for name, plain := range hostilePackets(t) {
		next(name, func() { mustSend(t, a, a.transport.seal.sealed(t, plain)) })
	}
	mustJoin(t, a, b)
}

// mustJoin shows that a node still lets another in.
func mustJoin(t *testing.T, all ...*Gossip) {
	t.Helper()
	c := mustOpen(t, configFor("late", all[0].Addr()))
	awaitAll(t, append(all, c)...)
}

func mustDial(t *testing.T, g *Gossip) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", g.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return conn
}

func mustWrite(t *testing.T, to io.Writer, b []byte) {
	t.Helper()
	if _, err := to.Write(b); err != nil {
		t.Fatal(err)
	}
}

func mustSend(t *testing.T, g *Gossip, packet []byte) {
	t.Helper()
	conn, err := net.Dial("udp", g.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	mustWrite(t, conn, packet)
}

// Shows that who does not have the key gets nothing but refusals: for what is not sealed, sealed with another key,
// for another cluster, changed on the way, announced as too long, or sealed the way that memberlist once did.
func TestHostileWithoutKey(t *testing.T) {
	a := mustOpen(t, configFor("a"))
	b := mustOpen(t, configFor("b", a.Addr()))
	awaitAll(t, a, b)
	ping := pack(t, pingType, fields{"SeqNo": 1, "Node": "a"})
	own := a.transport.seal
	mine, err := newSeal(cluster, key(2))
	if err != nil {
		t.Fatal(err)
	}
	other, err := newSeal("another", key(1))
	if err != nil {
		t.Fatal(err)
	}
	changed := func(b []byte, at int) []byte {
		b = bytes.Clone(b)
		b[(at+len(b))%len(b)] ^= 1
		return b
	}
	endless := append(bytes.Clone(own.head), encryptedType, 0xff, 0xff, 0xff, 0xff)
	streams := map[string][]byte{
		"plain": append([]byte{}, ping...), "plain with label": append(bytes.Clone(own.head), ping...),
		"another key": mine.framed(t, ping), "another cluster": other.framed(t, ping), "too long": endless,
		"changed": changed(own.framed(t, ping), -1), "old seal": changed(own.framed(t, ping), len(own.head)+frameHead),
		"without a label": own.framed(t, ping)[len(own.head):], "long plain": bytes.Repeat([]byte{'x'}, 100),
	}
	for name, stream := range streams {
		conn := mustDial(t, a)
		mustWrite(t, conn, stream)
		_ = conn.(*net.TCPConn).CloseWrite()
		if answer, _ := io.ReadAll(conn); len(answer) > 0 {
			t.Errorf("%s: the answer is %q", name, answer)
		}
	}
	packets := [][]byte{
		ping, append(bytes.Clone(own.head), ping...), mine.sealed(t, ping), other.sealed(t, ping),
		changed(own.sealed(t, ping), -1), changed(own.sealed(t, ping), len(own.head)), own.head[:3], {labelType}, {0},
		make([]byte, 9000),
	}
	for _, packet := range packets {
		mustSend(t, a, packet)
	}
	await(t, "all are refused", func() bool { return a.Refused() >= uint64(len(streams)+len(packets)) })
	conn := mustDial(t, a) // that the same is answered when it is sealed as it should be
	mustWrite(t, conn, own.framed(t, ping))
	if _, plain, err := own.answer(conn); err != nil || len(plain) == 0 || plain[0] != ackType {
		t.Errorf("a sound ping: %v %v", plain, err)
	}
	mustJoin(t, a, b)
}

// Shows that streams which say nothing, more than a node holds, neither pile up nor keep other nodes away: the
// oldest are ended.
func TestSilentStreams(t *testing.T) {
	a := mustOpen(t, configFor("a"))
	var silent []net.Conn
	for range 3 * maxReading {
		silent = append(silent, mustDial(t, a))
	}
	await(t, "all have come, and no more than the bound are held", func() bool {
		a.transport.mu.Lock()
		defer a.transport.mu.Unlock()
		return a.transport.arrival >= 3*maxReading && len(a.transport.reading) == maxReading
	})
	for _, conn := range silent[:2*maxReading] {
		if n, err := conn.Read(make([]byte, 1)); n > 0 || err == nil {
			t.Fatal("a silent stream is answered")
		}
	}
	mustJoin(t, a)
}

// Shows that sealed packets that come faster than any cluster sends them, as a recorded one can be sent again, are
// dropped from some rate on, and that streams are refused while many are being answered.
func TestSealedButTooMany(t *testing.T) {
	a := mustOpen(t, configFor("a"))
	ack := a.transport.seal.sealed(t, pack(t, ackType, fields{"SeqNo": 1}))
	conn, err := net.Dial("udp", a.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	await(t, "some are dropped", func() bool {
		for range 500 {
			mustWrite(t, conn, ack)
		}
		return a.Refused() > 0
	})
	a.transport.mu.Lock()
	a.transport.served += maxServed
	a.transport.mu.Unlock()
	stream := mustDial(t, a)
	mustWrite(t, stream, a.transport.seal.framed(t, pack(t, pingType, fields{"SeqNo": 1, "Node": "a"})))
	if answer, _ := io.ReadAll(stream); len(answer) > 0 {
		t.Errorf("the answer is %v", answer)
	}
	a.transport.mu.Lock()
	a.transport.served -= maxServed
	if a.transport.served != 0 {
		t.Errorf("%d streams are being answered", a.transport.served)
	}
	a.transport.mu.Unlock()
	mustJoin(t, a)
}

// Shows that a node without a key sends nothing to addresses that are not loopback, whatever it is asked.
func TestNothingLeavesWithoutKey(t *testing.T) {
	c := configFor("a")
	c.Key = nil
	a := mustOpen(t, c)
	if _, err := a.transport.WriteTo([]byte("x"), "192.0.2.1:1"); !errors.Is(err, errNoKey) {
		t.Errorf("a packet: %v", err)
	}
	if _, err := a.transport.DialTimeout("192.0.2.1:1", time.Second); !errors.Is(err, errNoKey) {
		t.Errorf("a stream: %v", err)
	}
	for _, name := range []string{"localhost:1", "", "127.0.0.1", "?0102:1"} {
		if _, err := a.transport.WriteTo([]byte("x"), name); err == nil {
			t.Errorf("%q was looked up", name)
		}
	}
}

// Shows that no bytes break the inspection of packets, and that parts of those which pass are messages that nodes
// send.
func FuzzInspectPacket(f *testing.F) {
	f.Add([]byte{pingType})
	f.Add([]byte{compoundType, 1, 0, 1, pingType})
	f.Add([]byte{checksumType, 0, 0, 0, 0, ackType})
	f.Fuzz(func(t *testing.T, b []byte) {
		if inspectPacket(b) == nil && (len(b) == 0 || b[0] > checksumType) {
			t.Errorf("%v passed", b)
		}
	})
}

// Shows that no bytes break the inspection of streams, nor make it pass what is no exchange of states or ping.
func FuzzInspectRequest(f *testing.F) {
	f.Add([]byte{pushPullType, 0x83})
	f.Add([]byte{pingType})
	f.Fuzz(func(t *testing.T, b []byte) {
		if inspectRequest(b) == nil && (len(b) == 0 || b[0] != pingType && b[0] != pushPullType) {
			t.Errorf("%v passed", b)
		}
	})
}
