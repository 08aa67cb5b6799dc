//go:build !chaos || !linux

package chaos

import (
	"github.com/quorate/quorate/clock"
	"github.com/quorate/quorate/fsm"
)

// Tap tells what the entries of a log do to one replica. In the product it tells nothing.
type Tap struct{}

// NewTap is the tap of a node's replica of a group. In the product it does nothing.
func NewTap(string, string) Tap { return Tap{} }

// Applied tells of an entry that has just been applied, the machine being as it left it. In the product it does
// nothing.
func (Tap) Applied(uint64, uint64, []byte, *fsm.Entry, *fsm.Answers, *fsm.Machine) {}

// Restored tells of a snapshot that has just taken the place of the state. In the product it does nothing.
func (Tap) Restored(uint64, *fsm.Machine) {}

// Flush returns when everything told is in the file. In the product it does nothing.
func (Tap) Flush() {}

// Clock is the source as it may be disturbed. In the product it is the source itself.
func Clock(source clock.Source) clock.Source { return source }

// SlowSync is called where a store is about to write something and sync it. In the product it does nothing.
func SlowSync() {}
