package fsm

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/quorate/quorate/policy"
)

// The bounds of one check and of one entry. Beyond one of them a check is refused; nothing is cut.
const (
	MaxPrincipalBytes  = policy.MaxPrincipalBytes
	MaxClassBytes      = policy.MaxClassBytes
	MaxTierBytes       = policy.MaxTierBytes
	MaxDecisionIDBytes = 128
	MaxGatewayBytes    = 256
	MaxCost            = policy.MaxLimit
	// MaxAlso bounds the further charges of one check.
	MaxAlso = 7
	// MaxChecksPerEntry and MaxEntryBytes bound one batch.
	MaxChecksPerEntry = 1024
	MaxEntryBytes     = 256 << 10
	// MaxDenialRecords bounds the recorded denials of one (gateway, principal).
	MaxDenialRecords = 64
	// MaxTime bounds partition time, so that adding a window to it cannot overflow.
	MaxTime = Time(8_000_000_000_000_000_000)
)

// DefaultBounds are the bounds of a partition that is made without others.
func DefaultBounds() Bounds {
	return Bounds{MaxKeys: 5_000_000, MaxReplayRecords: 8_000_000}
}

// Validate reports what is wrong with b, or nil.
func (b Bounds) Validate() error {
	if b.MaxKeys < 1 || b.MaxKeys > 1<<40 {
		return fmt.Errorf("max_keys is %d: set it between 1 and 2^40", b.MaxKeys)
	}
	if b.MaxReplayRecords < 1 || b.MaxReplayRecords > 1<<40 {
		return fmt.Errorf("max_replay_records is %d: set it between 1 and 2^40", b.MaxReplayRecords)
	}
	return nil
}

// ValidateCheck reports what makes c malformed, naming the field, or nil. The door calls it before
// anything is touched, and the state machine again for each check of an entry.
func ValidateCheck(c *Check) error {
	if err := validName("principal", c.Principal, MaxPrincipalBytes); err != nil {
		return err
	}
	if err := validName("decision_id", c.DecisionID, MaxDecisionIDBytes); err != nil {
		return err
	}
	if err := validName("gateway", c.Gateway, MaxGatewayBytes); err != nil {
		return err
	}
	if err := validCharge(&c.Charge); err != nil {
		return err
	}
	if len(c.Also) > MaxAlso {
		return fmt.Errorf("also has %d charges: send at most %d", len(c.Also), MaxAlso)
	}
	for i := range c.Also {
		if err := validCharge(&c.Also[i]); err != nil {
			return fmt.Errorf("also[%d]: %w", i, err)
		}
	}
	return nil
}

// ValidatePeek reports what makes p malformed, naming the field, or nil.
func ValidatePeek(p *Peek) error {
	if err := validName("principal", p.Principal, MaxPrincipalBytes); err != nil {
		return err
	}
	if err := validName("api_class", p.Class, MaxClassBytes); err != nil {
		return err
	}
	return validTier(p.Tier)
}

func validCharge(c *Charge) error {
	if err := validName("api_class", c.Class, MaxClassBytes); err != nil {
		return err
	}
	if err := validTier(c.Tier); err != nil {
		return err
	}
	if c.Cost < 1 || c.Cost > MaxCost {
		return fmt.Errorf("cost is %d: send a whole number from 1 to 2^53", c.Cost)
	}
	return nil
}

func validTier(tier string) error {
	if tier == "" {
		return nil
	}
	return validName("tier", tier, MaxTierBytes)
}

func validName(field, s string, maxBytes int) error {
	switch {
	case s == "":
		return fmt.Errorf("%s is empty", field)
	case len(s) > maxBytes:
		return fmt.Errorf("%s has %d bytes: send at most %d", field, len(s), maxBytes)
	case !utf8.ValidString(s):
		return fmt.Errorf("%s is not valid UTF-8", field)
	case strings.IndexByte(s, 0) >= 0:
		return fmt.Errorf("%s contains a NUL", field)
	}
	return nil
}
