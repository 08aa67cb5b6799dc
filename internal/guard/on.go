//go:build !chaos

package guard

// On reports whether a guard is in place. In the product it always is.
func On(Guard) bool { return true }
