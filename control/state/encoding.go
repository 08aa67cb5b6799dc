package state

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/quorate/quorate/fsm"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errCut = errors.New("cut short")

// codec writes, or reads, one encoding: the same function serves both ways, so that they cannot differ.
// The first error of a reader stays, and every later read gives a zero. A writer changes nothing of what it
// encodes: others may be reading it.
type codec struct {
	b       []byte
	reading bool
	err     error
}

func (c *codec) fail(err error) {
	if c.err == nil {
		c.err = err
	}
	c.b = nil
}

func (c *codec) uint(v *uint64) {
	if !c.reading {
		c.b = binary.AppendUvarint(c.b, *v)
		return
	}
	wide, n := binary.Uvarint(c.b)
	if *v = wide; n <= 0 {
		*v = 0
		c.fail(errCut)
		return
	}
	if n > 1 && c.b[n-1] == 0 {
		c.fail(errors.New("a number is not in its shortest form"))
		return
	}
	c.b = c.b[n:]
}

// number is uint for any unsigned type that holds what is read.
func number[T ~uint8 | ~uint16 | ~uint32 | ~uint64](c *codec, v *T) {
	wide := uint64(*v)
	c.uint(&wide)
	if !c.reading {
		return
	}
	if *v = T(wide); uint64(*v) != wide {
		c.fail(fmt.Errorf("number %d is out of range", wide))
	}
}

func (c *codec) int(v *int64) {
	wide := uint64(*v)<<1 ^ uint64(*v>>63)
	c.uint(&wide)
	if c.reading {
		*v = int64(wide>>1) ^ -int64(wide&1)
	}
}

func (c *codec) bool(v *bool) {
	var n uint8
	if *v {
		n = 1
	}
	number(c, &n)
	if n > 1 {
		c.fail(fmt.Errorf("%d is no truth value", n))
	}
	if c.reading {
		*v = n == 1
	}
}

func (c *codec) take(n uint64) []byte {
	if n > uint64(len(c.b)) {
		c.fail(errCut)
		return nil
	}
	v := c.b[:n]
	c.b = c.b[n:]
	return v
}

func (c *codec) string(s *string) {
	n := uint64(len(*s))
	c.uint(&n)
	if c.reading {
		*s = string(c.take(n))
	} else {
		c.b = append(c.b, *s...)
	}
}

func (c *codec) array(a []byte) {
	if c.reading {
		copy(a, c.take(uint64(len(a))))
	} else {
		c.b = append(c.b, a...)
	}
}

// list codes each element; each takes at least one byte. An empty list is read as nil.
func list[E any](c *codec, l *[]E, each func(*codec, *E)) {
	n := uint64(len(*l))
	c.uint(&n)
	if !c.reading {
		for i := range *l {
			each(c, &(*l)[i])
		}
		return
	}
	if n > uint64(len(c.b)) {
		c.fail(errCut)
		return
	}
	*l = nil
	for ; n > 0 && c.err == nil; n-- {
		var e E
		each(c, &e)
		*l = append(*l, e)
	}
}

// part codes what p points to, and makes it first when reading.
func part[E any](c *codec, p **E, each func(*codec, *E)) {
	if c.reading {
		*p = new(E)
	}
	each(c, *p)
}

func text(c *codec, s *string) { c.string(s) }

func slotRange(c *codec, r *fsm.SlotRange) {
	number(c, &r.First)
	number(c, &r.Last)
}

func ownedRange(c *codec, r *Range) {
	slotRange(c, &r.SlotRange)
	number(c, &r.Epoch)
}

// end checks that nothing is left.
func (c *codec) end() error {
	if c.err == nil && len(c.b) > 0 {
		return fmt.Errorf("%d bytes too many", len(c.b))
	}
	return c.err
}

// commandVersion is the version of the encoding of commands. A replica that meets another must stop.
const commandVersion = 3

// AppendCommand appends the durable encoding of c to b. It ends with a CRC-32C of the rest.
func AppendCommand(b []byte, c *Command) []byte {
	w := &codec{b: append(b, commandVersion)}
	w.command(c)
	return binary.LittleEndian.AppendUint32(w.b, crc32.Checksum(w.b[len(b):], castagnoli))
}

// DecodeCommand reads what AppendCommand wrote. It refuses anything else, whatever the bytes.
func DecodeCommand(b []byte) (*Command, error) {
	if len(b) < 5 {
		return nil, fmt.Errorf("command: %w", errCut)
	}
	if b[0] != commandVersion {
		return nil, fmt.Errorf("command of version %d: this program knows version %d, use the one that wrote it",
			b[0], commandVersion)
	}
	body, stored := b[:len(b)-4], binary.LittleEndian.Uint32(b[len(b)-4:])
	if crc32.Checksum(body, castagnoli) != stored {
		return nil, errors.New("command: its checksum is wrong: it is damaged, replace this replica")
	}
	r, c := &codec{b: body[1:], reading: true}, &Command{}
	r.command(c)
	if err := r.end(); err != nil {
		return nil, fmt.Errorf("command: %w", err)
	}
	return c, nil
}

func (c *codec) command(k *Command) {
	number(c, &k.Kind)
	c.array(k.ID[:])
	c.uint(&k.Basis.Index)
	c.array(k.Basis.Digest[:])
	c.string(&k.Actor)
	c.int(&k.WallNanos)
	c.string(&k.Comment)
	c.string(&k.Difference)
	switch k.Kind {
	case KindConfirm:
	case KindInit:
		part(c, &k.Init, (*codec).init)
	case KindPutNode:
		part(c, &k.Node, (*codec).putNode)
	case KindLoseNode:
		c.string(&k.NodeID)
		c.string(&k.Instance)
	case KindNodeState:
		c.string(&k.NodeID)
		number(c, &k.State)
	case KindCreate:
		part(c, &k.Create, (*codec).create)
	case KindRetire:
		number(c, &k.Partition)
	case KindReplicas:
		number(c, &k.Partition)
		part(c, &k.Replicas, (*codec).replicas)
	case KindStartPlan:
		part(c, &k.Start, (*codec).start)
	case KindDecidePlan:
		number(c, &k.Plan)
		part(c, &k.Decide, (*codec).decide)
	case KindAbortPlan, KindClosePlan:
		number(c, &k.Plan)
	case KindPublish:
		part(c, &k.Publish, (*codec).publish)
	case KindSwitchClass:
		part(c, &k.Switch, (*codec).switchClass)
	case KindRollback:
		part(c, &k.Rollback, (*codec).rollback)
	case KindInstalled:
		list(c, &k.Installed, (*codec).note)
	case KindSweep:
		c.uint(&k.Epoch)
	case KindAttempt:
		part(c, &k.Attempt, (*codec).attempt)
	case KindRaise:
		number(c, &k.Level)
	case KindPutToken:
		part(c, &k.Token, (*codec).token)
	case KindRevokeToken:
		c.string(&k.TokenID)
	case KindNote:
		part(c, &k.Act, (*codec).act)
	default:
		c.fail(fmt.Errorf("kind %d is unknown: use the program that wrote it", k.Kind))
	}
}

func (c *codec) init(v *Init) {
	c.string(&v.Cluster)
	number(c, &v.Incarnation)
	c.array(v.Seed[:])
	there := v.Restored != nil
	c.bool(&there)
	if there {
		part(c, &v.Restored, (*codec).restored)
	}
}

func (c *codec) putNode(v *PutNode) {
	for _, s := range []*string{&v.ID, &v.Instance, &v.GRPC, &v.HTTP, &v.Raft, &v.Zone} {
		c.string(s)
	}
}

func (c *codec) create(v *Create) {
	c.uint(&v.Map)
	list(c, &v.Ranges, slotRange)
	list(c, &v.Replicas, text)
}

func (c *codec) replicas(v *Replicas) {
	c.uint(&v.ConfVersion)
	list(c, &v.Nodes, text)
}

func (c *codec) start(v *StartPlan) {
	number(c, &v.Kind)
	number(c, &v.Source)
	number(c, &v.Destination)
	list(c, &v.New, text)
	list(c, &v.Ranges, slotRange)
	c.string(&v.From)
	c.bool(&v.AcceptLoss)
}

func (c *codec) decide(v *Decide) {
	c.array(v.Exported[:])
	c.array(v.Imported[:])
}

func (c *codec) publish(v *Publish) {
	number(c, &v.Base)
	c.string(&v.Label)
	c.array(v.Body[:])
	c.int(&v.Bytes)
	c.bool(&v.Held)
	c.uint(&v.BodyEpoch)
}

func (c *codec) switchClass(v *SwitchClass) {
	number(c, &v.Base)
	c.string(&v.Class)
	c.bool(&v.Disabled)
}

func (c *codec) rollback(v *Rollback) {
	number(c, &v.Base)
	number(c, &v.To)
	c.bool(&v.Held)
	c.uint(&v.BodyEpoch)
}

func (c *codec) note(v *Note) {
	number(c, &v.Partition)
	number(c, &v.Revision)
}

func (c *codec) attempt(v *Attempt) {
	c.string(&v.Action)
	c.string(&v.Object)
	c.string(&v.Reason)
}

func (c *codec) act(v *Act) {
	c.string(&v.Action)
	c.string(&v.Object)
	c.string(&v.Message)
}
