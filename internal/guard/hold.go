//go:build !chaos || !linux

package guard

// Hold marks a point at which a test can hold the process. In the product it does nothing.
func Hold(string) {}
