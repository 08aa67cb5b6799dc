package bodies

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/quorate/quorate/control/state"
)

const (
	// MaxChunkBytes bounds one chunk of a body on its way.
	MaxChunkBytes = 1 << 20
	// maxUploads bounds the bodies that are written at one time.
	maxUploads = 4

	bodySuffix = ".policy"
	tmpPattern = "incoming-*.tmp"
)

// What a call can come to.
var (
	// ErrNotFound: there is no body of this digest.
	ErrNotFound = errors.New("policy body not found")
	// ErrMismatch: what was sent, or is on the disk, does not have the digest.
	ErrMismatch = errors.New("policy body does not have its digest")
	// ErrBusy: too many bodies are being written.
	ErrBusy = errors.New("too many policy bodies are being received: try again")
	// ErrTooLarge: a body, or a chunk of one, is over its bound.
	ErrTooLarge = errors.New("policy body is too large")
)

// Store is the bodies in one directory.
type Store struct {
	dir     string
	uploads chan struct{} // one per body being written

	mu    sync.Mutex // guards asked, and the names in dir against Sweep
	asked map[state.Digest]uint64
}

// unknown is the epoch of a body that nobody has asked for since the start.
const unknown = ^uint64(0)

// Open opens the bodies in dir, which is made when it is missing. What an interrupted Put left is removed.
func Open(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("make directory of policy bodies: %w", err)
	}
	if err := syncDir(filepath.Dir(dir)); err != nil {
		return nil, fmt.Errorf("make directory of policy bodies: %w", err)
	}
	s := &Store{dir: dir, uploads: make(chan struct{}, maxUploads), asked: map[state.Digest]uint64{}}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if ok, _ := filepath.Match(tmpPattern, e.Name()); ok {
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return nil, err
			}
		} else if d, ok := digestOf(e.Name()); ok {
			s.asked[d] = unknown
		}
	}
	return s, nil
}

func digestOf(name string) (d state.Digest, ok bool) {
	text, ok := strings.CutSuffix(name, bodySuffix)
	if !ok {
		return d, false
	}
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != len(d) {
		return d, false
	}
	return state.Digest(b), true
}

func (s *Store) path(d state.Digest) string { return filepath.Join(s.dir, d.String()+bodySuffix) }

// ask notes, under mu, that a body was asked for. An unknown epoch is older than any.
func (s *Store) ask(d state.Digest, epoch uint64) {
	if known, ok := s.asked[d]; !ok || known == unknown || known < epoch {
		s.asked[d] = epoch
	}
}

// Has reports that the body is here, durably, and will be at least through the body epoch after this one.
func (s *Store) Has(d state.Digest, epoch uint64) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := os.Stat(s.path(d))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	s.ask(d, epoch)
	return true, nil
}

// Put takes a body in chunks and keeps it, as Has does, if it has the digest. One that is here already is not
// read again. It returns the body's size in bytes.
func (s *Store) Put(d state.Digest, epoch uint64, chunks iter.Seq2[[]byte, error]) (int64, error) {
	if has, err := s.Has(d, epoch); err != nil {
		return 0, err
	} else if has {
		info, err := os.Stat(s.path(d))
		if err == nil {
			return info.Size(), nil
		}
	}
	select {
	case s.uploads <- struct{}{}:
		defer func() { <-s.uploads }()
	default:
		return 0, ErrBusy
	}
	f, err := os.CreateTemp(s.dir, tmpPattern)
	if err != nil {
		return 0, fmt.Errorf("write policy body: %w", err)
	}
	n, err := receive(f, d, chunks)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = s.name(f.Name(), d, epoch)
	}
	if err != nil {
		return 0, errors.Join(err, removeIfThere(f.Name()))
	}
	return n, nil
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// receive writes the chunks and syncs them.
func receive(f *os.File, want state.Digest, chunks iter.Seq2[[]byte, error]) (int64, error) {
	sum, n := sha256.New(), int64(0)
	for chunk, err := range chunks {
		if err != nil {
			return 0, fmt.Errorf("receive policy body: %w", err)
		}
		n += int64(len(chunk))
		if len(chunk) > MaxChunkBytes || n > state.MaxBodyBytes {
			return 0, fmt.Errorf("%w: send chunks of at most %d bytes, %d in all", ErrTooLarge, MaxChunkBytes,
				state.MaxBodyBytes)
		}
		sum.Write(chunk)
		if _, err := f.Write(chunk); err != nil {
			return 0, fmt.Errorf("write policy body: %w", err)
		}
	}
	if state.Digest(sum.Sum(nil)) != want {
		return 0, fmt.Errorf("%w: what was sent is not %s: send it again", ErrMismatch, want)
	}
	if err := f.Sync(); err != nil {
		return 0, fmt.Errorf("sync policy body: %w", err)
	}
	return n, nil
}

// name gives a whole body its name, durably.
func (s *Store) name(tmp string, d state.Digest, epoch uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := os.Rename(tmp, s.path(d)); err != nil {
		return fmt.Errorf("name policy body: %w", err)
	}
	if err := syncDir(s.dir); err != nil {
		return fmt.Errorf("name policy body: %w", err)
	}
	s.ask(d, epoch)
	return nil
}

// Get opens a body. The last Read says ErrMismatch when what was read is not the body.
func (s *Store) Get(d state.Digest) (body io.ReadCloser, size int64, err error) {
	f, err := os.Open(s.path(d))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, fmt.Errorf("%w: %s", ErrNotFound, d)
	}
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return &checked{file: f, want: d, sum: sha256.New()}, info.Size(), nil
}

// checked is a body that is being read.
type checked struct {
	file *os.File
	want state.Digest
	sum  hash.Hash
}

// Read reads on, and compares at the end.
func (c *checked) Read(p []byte) (int, error) {
	n, err := c.file.Read(p)
	c.sum.Write(p[:n])
	if errors.Is(err, io.EOF) && state.Digest(c.sum.Sum(nil)) != c.want {
		return n, fmt.Errorf("%w: %s is damaged: remove the file, it is fetched again", ErrMismatch, c.file.Name())
	}
	return n, err
}

// Close closes the file.
func (c *checked) Close() error { return c.file.Close() }

// Discard removes a body that was found damaged, so that Put takes it anew. One that is not damaged stays.
func (s *Store) Discard(d state.Digest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	body, _, err := s.Get(d)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, body)
	err = errors.Join(err, body.Close())
	if !errors.Is(err, ErrMismatch) {
		return err
	}
	if err := removeIfThere(s.path(d)); err != nil {
		return err
	}
	delete(s.asked, d)
	return syncDir(s.dir)
}

// Chunks are a body in the pieces in which Put takes it. A piece must be used before the next is asked for.
func (s *Store) Chunks(d state.Digest) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		body, _, err := s.Get(d)
		if err != nil {
			yield(nil, err)
			return
		}
		defer func() { _ = body.Close() }() // it was only read
		buffer := make([]byte, MaxChunkBytes)
		for {
			n, err := io.ReadFull(body, buffer)
			if n > 0 && !yield(buffer[:n], nil) {
				return
			}
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return
			}
			if err != nil {
				yield(nil, err)
				return
			}
		}
	}
}

// Sweep drops the bodies that are not wanted and were last asked for before the body epoch that came before
// this one. It returns how many.
func (s *Store) Sweep(epoch uint64, wanted func(state.Digest) bool) (dropped int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for d, asked := range s.asked {
		if asked == unknown {
			s.asked[d] = epoch
			continue
		}
		if wanted(d) || asked+1 >= epoch {
			continue
		}
		if rerr := removeIfThere(s.path(d)); rerr != nil {
			err = errors.Join(err, rerr)
			continue
		}
		delete(s.asked, d)
		dropped++
	}
	return dropped, err
}

// syncDir makes the names in a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
