package netns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

const (
	// device is the name of the one in each namespace.
	device = "tun0"
	// mtu is as large as a packet gets: larger than on most networks, as each costs two system calls.
	mtu = 9000
	// prefix is how long that of all addresses is.
	prefix = 24
)

// space is a network namespace with one device, whose packets this process reads and writes. A thread lives in it.
type space struct {
	addr    netip.Addr
	tun     *os.File
	self    *os.File // the namespace
	calls   chan func()
	closing chan struct{}
	ended   chan struct{} // closed when the thread has ended
}

// newSpace makes a namespace whose device has an address.
func newSpace(addr netip.Addr) (*space, error) {
	s := &space{addr: addr, calls: make(chan func()), closing: make(chan struct{}), ended: make(chan struct{})}
	made := make(chan error, 1)
	onThread(func() {
		defer close(s.ended)
		err := s.make()
		made <- err
		for err == nil {
			select {
			case f := <-s.calls:
				f()
			case <-s.closing:
				return
			}
		}
	})
	if err := <-made; err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// onThread runs f in a goroutine that has a thread for its own, which ends with it, so that what f does to the thread
// concerns nobody else. It is never the first thread: that one does not end, and what /proc tells of the process is
// told of it.
func onThread(f func()) {
	has := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			onThread(f) // gets another, as this one is taken
			runtime.UnlockOSThread()
			close(has)
			return
		}
		close(has)
		f()
	}()
	<-has
}

// make has the thread in a namespace of its own, with its device up. It needs a thread that ends afterwards.
func (s *space) make() (err error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("a network namespace cannot be made, which needs root: %w", err)
	}
	if s.self, err = os.Open("/proc/thread-self/ns/net"); err != nil {
		return err
	}
	// A device is made in the namespace of the thread that opens this.
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("/dev/net/tun cannot be opened: %w", err)
	}
	ifr, err := unix.NewIfreq(device)
	if err == nil {
		ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("a TUN device cannot be made: %w", err), unix.Close(fd))
	}
	s.tun = os.NewFile(uintptr(fd), "/dev/net/tun") // that can be waited for only now
	return s.configure()
}

// configure gives the device of the thread's namespace its address, and brings it up, and loopback.
func (s *space) configure() error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket) //nolint:errcheck // it was only to ask by
	mask := net.CIDRMask(prefix, 32)
	for _, step := range []struct {
		name    string
		request uint
		set     func(*unix.Ifreq) error
	}{
		{"lo", unix.SIOCSIFFLAGS, func(r *unix.Ifreq) error { r.SetUint16(unix.IFF_UP); return nil }},
		{device, unix.SIOCSIFMTU, func(r *unix.Ifreq) error { r.SetUint32(mtu); return nil }},
		{device, unix.SIOCSIFADDR, func(r *unix.Ifreq) error { return r.SetInet4Addr(s.addr.AsSlice()) }},
		{device, unix.SIOCSIFNETMASK, func(r *unix.Ifreq) error { return r.SetInet4Addr(mask) }},
		{device, unix.SIOCSIFFLAGS, func(r *unix.Ifreq) error { r.SetUint16(unix.IFF_UP); return nil }},
	} {
		r, err := unix.NewIfreq(step.name)
		if err == nil {
			err = step.set(r)
		}
		if err == nil {
			err = unix.IoctlIfreq(socket, step.request, r)
		}
		if err != nil {
			return fmt.Errorf("device %s cannot be configured (request %#x): %w", step.name, step.request, err)
		}
	}
	return nil
}

// do runs f on the thread in the namespace.
func (s *space) do(f func() error) error {
	result := make(chan error, 1)
	select {
	case s.calls <- func() { result <- f() }:
		return <-result
	case <-s.ended:
		return net.ErrClosed
	}
}

// dial opens a connection from the namespace. Only IP addresses can be dialled: then the dialler makes its socket where
// it is called, and a socket stays in the namespace that it was made in.
func (s *space) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if _, err := netip.ParseAddrPort(address); err != nil {
		return nil, err
	}
	type result struct {
		conn net.Conn
		err  error
	}
	dialled := make(chan result, 1)
	onThread(func() {
		if err := unix.Setns(int(s.self.Fd()), unix.CLONE_NEWNET); err != nil {
			dialled <- result{nil, fmt.Errorf("the namespace of %s cannot be entered: %w", s.addr, err)}
			return
		}
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		dialled <- result{conn, err}
	})
	r := <-dialled
	return r.conn, r.err
}

// close ends the thread, and the device with it.
func (s *space) close() error {
	close(s.closing)
	<-s.ended
	var errs []error
	for _, f := range []*os.File{s.tun, s.self} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}
