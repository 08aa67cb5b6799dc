package partition

import (
	"iter"

	"github.com/quorate/quorate/fsm"
)

// Source is a state that slots are exported from. View calls f with it, and nothing changes it meanwhile; f neither
// changes nor keeps it, and is to be quick.
type Source interface {
	View(f func(m *fsm.Machine))
}

var _ Source = (*Partition)(nil)

// View shows the state as this replica has applied it. No entry is applied meanwhile.
func (p *Partition) View(f func(m *fsm.Machine)) {
	p.replica.view(func(m *fsm.Machine, _ uint64) { f(m) })
}

// pieceBytes is what a piece weighs beside its data.
const pieceBytes = 48

// Export reads the images of slots, and of the policy history beside them, as far as whoever has the images have does
// not have the same already. It yields pieces in order, of at most fsm.MaxStageBytes together. Each image is as of one
// entry of the log, but not all of them of the same one, unless the slots are frozen: the state is looked at for a
// moment at a time.
func Export(from Source, ranges []fsm.SlotRange, have []fsm.SlotDigest) iter.Seq[[]fsm.Piece] {
	return func(yield func([]fsm.Piece) bool) {
		var there []fsm.SlotDigest
		born := false
		from.View(func(m *fsm.Machine) {
			if born = m.Born(); born {
				there = m.SlotDigests(ranges)
			}
		})
		if !born {
			return
		}
		differ, out := fsm.DifferingSlots(there, have), packer{yield: yield}
		for len(differ) > 0 && !out.stopped {
			n := ofOneShard(differ)
			var images []fsm.Image
			from.View(func(m *fsm.Machine) { images = m.Images(differ[:n]) })
			differ = differ[n:]
			for _, image := range images {
				out.add(image)
			}
		}
		out.flush()
	}
}

// ofOneShard is how many of the first slots are read together.
func ofOneShard(slots []fsm.Slot) int {
	n := 1
	for n < len(slots) && slots[n] > slots[0] && slots[n]/fsm.SlotsPerShard == slots[0]/fsm.SlotsPerShard {
		n++
	}
	return n
}

// packer cuts images into pieces, and packs these.
type packer struct {
	yield   func([]fsm.Piece) bool
	pieces  []fsm.Piece
	weight  int
	stopped bool
}

func (p *packer) add(image fsm.Image) {
	size, offset, data := uint64(len(image.Data)), uint64(0), image.Data
	for first := true; first || len(data) > 0; first = false {
		room := fsm.MaxStageBytes - p.weight - pieceBytes
		if room <= 0 || room < len(data) && room < fsm.MaxStageBytes/4 {
			p.flush()
			room = fsm.MaxStageBytes - pieceBytes
		}
		n := min(room, len(data))
		p.pieces = append(p.pieces, fsm.Piece{
			Slot: image.Slot, Digest: image.Digest, Size: size, Offset: offset, Data: data[:n],
		})
		p.weight += pieceBytes + n
		offset, data = offset+uint64(n), data[n:]
	}
}

func (p *packer) flush() {
	if len(p.pieces) == 0 {
		return
	}
	p.stopped = p.stopped || !p.yield(p.pieces)
	p.pieces, p.weight = nil, 0
}

// ManifestOf is what an export of slots amounts to, as the state stands; false of one that is not born.
func ManifestOf(from Source, ranges []fsm.SlotRange) (manifest fsm.Manifest, born bool) {
	from.View(func(m *fsm.Machine) {
		if born = m.Born(); born {
			manifest = m.Manifest(ranges)
		}
	})
	return manifest, born
}
