package main

import "syscall"

// childAttr makes a child end with this process, however this one ends, and keeps the terminal's
// signals from it, so that only this process answers them.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
