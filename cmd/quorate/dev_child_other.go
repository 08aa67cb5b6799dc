//go:build !linux

package main

import "syscall"

// childAttr keeps the terminal's signals from a child, so that only this process answers them.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
