package link

import (
	"google.golang.org/protobuf/encoding/protowire"
)

// Check is a check as it is sent: quoratev1.CheckRequest, without what is never sent. Its strings are UTF-8.
type Check struct {
	Principal, Class, ID, Tier string
	Cost                       int64
	Epoch                      uint64
	Attempt                    uint32
	Also                       []Charge
}

// Charge is a further charge of a check.
type Charge struct {
	Class, Tier string
	Cost        int64
}

// The fields of the messages, by number, as quota.proto has them. All are below 16, so that a tag is one byte.
const (
	fieldCheckPrincipal  = 1
	fieldCheckClass      = 2
	fieldCheckID         = 3
	fieldCheckTier       = 4
	fieldCheckCost       = 5
	fieldCheckRouteEpoch = 7
	fieldCheckAttempt    = 8
	fieldCheckAlso       = 9

	fieldChargeClass = 1
	fieldChargeTier  = 2
	fieldChargeCost  = 3

	fieldFrameChecks = 1

	fieldStreamedSequence = 1
	fieldStreamedCheck    = 2
	fieldStreamedTimeout  = 3
)

// append appends the check in protobuf's wire format: byte for byte what proto.Marshal makes of the message.
func (c *Check) append(b []byte) []byte {
	b = appendText(b, fieldCheckPrincipal, c.Principal)
	b = appendText(b, fieldCheckClass, c.Class)
	b = appendText(b, fieldCheckID, c.ID)
	b = appendText(b, fieldCheckTier, c.Tier)
	b = appendNumber(b, fieldCheckCost, uint64(c.Cost))
	if c.Epoch != 0 {
		b = appendNumber(b, fieldCheckRouteEpoch, c.Epoch)
	}
	if c.Attempt != 0 {
		b = appendNumber(b, fieldCheckAttempt, uint64(c.Attempt))
	}
	for i := range c.Also {
		a := &c.Also[i]
		b = protowire.AppendTag(b, fieldCheckAlso, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(a.size()))
		b = appendText(b, fieldChargeClass, a.Class)
		b = appendText(b, fieldChargeTier, a.Tier)
		b = appendNumber(b, fieldChargeCost, uint64(a.Cost))
	}
	return b
}

func (a *Charge) size() int {
	return sizeText(a.Class) + sizeText(a.Tier) + 1 + protowire.SizeVarint(uint64(a.Cost))
}

// appendStreamed appends a check of a frame, of which body is the check proper.
func appendStreamed(b []byte, sequence uint64, body []byte, timeoutMicros int64) []byte {
	size := 1 + protowire.SizeVarint(sequence) + 1 + protowire.SizeBytes(len(body)) +
		1 + protowire.SizeVarint(uint64(timeoutMicros))
	b = protowire.AppendTag(b, fieldFrameChecks, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(size))
	b = appendNumber(b, fieldStreamedSequence, sequence)
	b = protowire.AppendTag(b, fieldStreamedCheck, protowire.BytesType)
	b = protowire.AppendBytes(b, body)
	return appendNumber(b, fieldStreamedTimeout, uint64(timeoutMicros))
}

func appendNumber(b []byte, field protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(append(b, byte(field<<3)|byte(protowire.VarintType)), v)
}

// appendText appends a string, unless it is empty.
func appendText(b []byte, field protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(append(b, byte(field<<3)|byte(protowire.BytesType)), s)
}

func sizeText(s string) int {
	if s == "" {
		return 0
	}
	return 1 + protowire.SizeBytes(len(s))
}
