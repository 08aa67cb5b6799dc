package backup

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
)

var takenAt = time.Date(2031, 5, 6, 7, 8, 9, 123, time.UTC)

// input is one file to be saved.
type input struct{ name, content string }

func bodyName(content string) string {
	sum := sha256.Sum256([]byte(content))
	return BodyDir + hex.EncodeToString(sum[:])
}

// inputs are the files of a small backup.
func inputs() []input {
	out := []input{{ControlName, "what the control group knew"}, {AuditName, "{\"index\":1}\n{\"index\":2}\n"}}
	bodies := []input{{bodyName("one"), "one"}, {bodyName("two"), "two"}}
	slices.SortFunc(bodies, func(a, b input) int { return strings.Compare(a.name, b.name) })
	return append(append(out, bodies...), input{PartitionDir + "p2", strings.Repeat("state", 300)},
		input{PartitionDir + "p10", ""}, input{PartitionDir + "p11", strings.Repeat("x", blockBytes)})
}

func manifest() *Manifest {
	part := func(id string, first, last uint16) Partition {
		return Partition{
			ID: id, Ranges: []Range{{first, last, 7}}, Keys: 3, Records: 4, Index: 99,
			Digest: strings.Repeat("0a", 16), TimeNanos: 12345,
		}
	}
	return &Manifest{
		Program: "test", Cluster: "c", Incarnation: 1, MapVersion: 5, PolicyRevision: 2, PolicyVersion: "v2",
		Partitions: []Partition{part("p2", 0, 9), part("p10", 10, 9999), part("p11", 10000, numSlots-1)},
	}
}

func mustWrite(t testing.TB, files []input, m *Manifest) ([]byte, Digest) {
	t.Helper()
	var out bytes.Buffer
	w := NewWriter(&out, takenAt)
	for _, f := range files {
		if err := w.Add(f.name, int64(len(f.content)), strings.NewReader(f.content)); err != nil {
			t.Fatal(err)
		}
	}
	d, err := w.Close(m)
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes(), d
}

// refused checks that a backup is refused in one line, with one of the package's errors.
func refused(t *testing.T, what string, src []byte) error {
	t.Helper()
	_, _, err := Verify(bytes.NewReader(src))
	if err == nil {
		t.Errorf("%s: it is taken", what)
		return errors.New("taken")
	}
	if len(err.Error()) > 300 {
		t.Errorf("%s: the error is long: %q", what, err)
	}
	_ = kindOf(t, err)
	return err
}

// Shows that what is written is read back, streaming and by parts, and that the same files make the same bytes.
func TestRoundTrip(t *testing.T) {
	want := manifest()
	src, d := mustWrite(t, inputs(), want)
	if again, _ := mustWrite(t, inputs(), manifest()); !bytes.Equal(src, again) {
		t.Error("the same files make another backup")
	}
	r := NewReader(iotest.OneByteReader(bytes.NewReader(src)))
	var got []input
	for {
		name, size, from, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(from)
		if err != nil || int64(len(b)) != size {
			t.Fatalf("%s: %d of %d bytes: %v", name, len(b), size, err)
		}
		got = append(got, input{name, string(b)})
	}
	if diff := cmp.Diff(inputs(), got, cmp.AllowUnexported(input{})); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(want, r.Manifest()); diff != "" || r.Digest() != d {
		t.Errorf("digest %s, want %s: %s", r.Digest(), d, diff)
	}
	b, err := Open(bytes.NewReader(src), int64(len(src)))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range slices.Backward(inputs()) {
		from, size, err := b.File(f.name)
		if err != nil {
			t.Fatal(err)
		}
		if part, err := io.ReadAll(from); err != nil || string(part) != f.content || size != int64(len(f.content)) {
			t.Errorf("%s: %q, %v", f.name, part, err)
		}
	}
	if _, _, err := b.File(PartitionDir + "p3"); err == nil {
		t.Error("a file that is not there can be read")
	}
}

// Shows that any tar reads a backup, and that its manifest can be checked by hand.
func TestIsTar(t *testing.T) {
	src, d := mustWrite(t, inputs(), manifest())
	r, last := tar.NewReader(bytes.NewReader(src)), ""
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if last = h.Name; last == sumName && string(b) != d.String()+"  manifest.json\n" {
			t.Errorf("the sum is %q", b)
		}
	}
	if last != sumName {
		t.Errorf("the last file is %s", last)
	}
}

// Shows that a backup which is cut at any block, and at some other places, is refused as cut short.
func TestCut(t *testing.T) {
	src, _ := mustWrite(t, inputs(), manifest())
	cuts := []int{1, 5, 99, 511, 513, len(src) - 1, len(src) - 513}
	for at := blockBytes; at < len(src); at += blockBytes {
		cuts = append(cuts, at)
	}
	for _, at := range cuts {
		if err := refused(t, fmt.Sprint("cut at ", at), src[:at]); !errors.Is(err, ErrTruncated) {
			t.Errorf("cut at %d: %v", at, err)
		}
	}
}

// Shows that a backup in which any one bit is another is refused, whether or not that bit says anything, and that
// the error of one within a file's content names the file.
func TestFlippedBits(t *testing.T) {
	src, _ := mustWrite(t, inputs(), manifest())
	for at := range src {
		bad := bytes.Clone(src)
		bad[at] ^= 1 << (at % 8)
		err := refused(t, fmt.Sprint("bit ", at%8, " of byte ", at), bad)
		if errors.Is(err, ErrForeign) && at >= 2*blockBytes {
			t.Errorf("byte %d: %v", at, err)
		}
	}
	at := bytes.Index(src, []byte("statestate"))
	bad := bytes.Clone(src)
	bad[at] ^= 1
	if err := refused(t, "content", bad); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "partitions/p2 ") {
		t.Errorf("a flipped bit in a partition: %v", err)
	}
}

// Shows that what follows a whole backup, even zeros, is refused.
func TestSomethingFollows(t *testing.T) {
	src, _ := mustWrite(t, inputs(), manifest())
	for _, more := range []string{"\x00", "x", strings.Repeat("\x00", 8*blockBytes), string(src)} {
		if err := refused(t, "more", append(bytes.Clone(src), more...)); !errors.Is(err, ErrDamaged) {
			t.Errorf("%d bytes more: %v", len(more), err)
		}
	}
}

// raw is an archive that Writer would not write.
func raw(t *testing.T, headers ...*tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range headers {
		content := h.Linkname // of a regular file, in these tests
		if h.Typeflag == tar.TypeReg {
			h.Linkname = ""
			if h.Size == 0 {
				h.Size = int64(len(content))
			}
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			_, _ = io.WriteString(w, content) // a size that is too large is the point of some
		}
	}
	_ = w.Close()
	return out.Bytes()
}

// Shows what each kind of file that was never a backup, or is of another format, is refused as.
func TestForeign(t *testing.T) {
	file := func(name, content string) *tar.Header {
		h := header(name, 0, takenAt.Truncate(time.Second))
		h.Linkname = content
		return h
	}
	first := file(formatName, string(formatLine(1)))
	link := &tar.Header{Typeflag: tar.TypeSymlink, Name: ControlName, Linkname: "/etc/passwd", Format: tar.FormatUSTAR}
	huge := header(ControlName, MaxControlBytes+1, takenAt.Truncate(time.Second))
	for _, c := range []struct {
		what string
		src  []byte
		is   error
		says string
	}{
		{"nothing", nil, ErrForeign, "it is empty"},
		{"text", []byte("hello"), ErrForeign, "snapshot save"},
		{"long text", bytes.Repeat([]byte("hello "), 1000), ErrForeign, "something else"},
		{"zeros", make([]byte, 4096), ErrForeign, "something else"},
		{"gzip", []byte("\x1f\x8b\x08" + strings.Repeat("z", 2000)), ErrForeign, "something else"},
		{"another archive", raw(t, file("readme", "x")), ErrForeign, "no file of a backup"},
		{"another first file", raw(t, file(ControlName, "x")), ErrForeign, "it begins with control"},
		{"another format file", raw(t, file(formatName, "tapes 1\n")), ErrForeign, "does not say so"},
		{"format zero", raw(t, file(formatName, "quorate backup 0\n")), ErrForeign, "does not say so"},
		{"format with more", raw(t, file(formatName, "quorate backup 2\nx")), ErrForeign, "does not say so"},
		{"newer", raw(t, file(formatName, "quorate backup 2\n"), file("whatever", "x")), ErrNewer, "format 2"},
		{"a link", raw(t, first, link), ErrDamaged, "what follows format"},
		{"a huge file", raw(t, file(formatName, string(formatLine(1))), huge), ErrDamaged, "at most 268435456"},
		{"a path", raw(t, file(formatName, string(formatLine(1))), file("../control", "x")), ErrDamaged, "no file of a backup"},
	} {
		err := refused(t, c.what, c.src)
		if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}

// Shows that a backup whose archive is right but whose files are not those of the manifest is refused, with the name
// of the file, and that Writer itself makes no such backup.
func TestOtherFiles(t *testing.T) {
	type change = func(files []input, m *Manifest) []input
	for _, c := range []struct {
		what   string
		change change
		says   string
	}{
		{"twice", func(f []input, _ *Manifest) []input { return slices.Insert(f, 1, f[0]) }, "control is in it twice"},
		{"order", func(f []input, _ *Manifest) []input { f[0], f[1] = f[1], f[0]; return f }, "out of order"},
		{"bodies", func(f []input, _ *Manifest) []input { f[2], f[3] = f[3], f[2]; return f }, "out of order"},
		{"partitions", func(f []input, _ *Manifest) []input { f[4], f[5] = f[5], f[4]; return f }, "out of order"},
		{"path", func(f []input, _ *Manifest) []input { f[4].name = PartitionDir + "../p2"; return f }, "no file of a backup"},
		{"absolute", func(f []input, _ *Manifest) []input { f[0].name = "/control"; return f }, "no file of a backup"},
		{"number", func(f []input, _ *Manifest) []input { f[4].name = PartitionDir + "p02"; return f }, "no file of a backup"},
		{"body name", func(f []input, _ *Manifest) []input { f[2].name = BodyDir + "beef"; return f }, "no file of a backup"},
		{"no partition", func(f []input, m *Manifest) []input { m.Partitions = nil; return f[:4] }, "out of order"},
		{"no control", func(f []input, _ *Manifest) []input { return f[1:] }, "out of order"},
		{"slots", func(f []input, m *Manifest) []input { m.Partitions[0].Ranges[0].Last = 8; return f }, "slots have an owner"},
		{"owners", func(f []input, m *Manifest) []input { m.Partitions[0].Ranges[0].Last = 10; return f }, "two owners"},
		{"ids", func(f []input, m *Manifest) []input { m.Partitions[2].ID = "p9"; return f }, "out of order"},
		{"other id", func(f []input, m *Manifest) []input { m.Partitions[2].ID = "p12"; return f }, "tells nothing of partitions/p11"},
		{"cluster", func(f []input, m *Manifest) []input { m.Cluster = ""; return f }, "names no cluster"},
	} {
		m := manifest()
		files := c.change(inputs(), m)
		w := NewWriter(io.Discard, takenAt)
		for _, f := range files {
			_ = w.Add(f.name, int64(len(f.content)), strings.NewReader(f.content)) // Close says it again
		}
		if _, err := w.Close(m); err == nil || !strings.Contains(err.Error(), c.says) && c.what != "no partition" {
			t.Errorf("%s: Writer says %v", c.what, err)
		}
		err := refused(t, c.what, forge(t, files, m))
		if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}

// forge writes a backup without any check of what is in it.
func forge(t *testing.T, files []input, m *Manifest) []byte {
	t.Helper()
	at := takenAt.Truncate(time.Second)
	all := append([]input{{formatName, string(formatLine(FormatVersion))}}, files...)
	m.Format, m.TakenAt, m.Files = FormatVersion, at, nil
	for _, f := range all {
		sum := sha256.Sum256([]byte(f.content))
		m.Files = append(m.Files, File{f.name, int64(len(f.content)), hex.EncodeToString(sum[:])})
	}
	src, err := m.encode()
	if err != nil {
		t.Fatal(err)
	}
	all = append(all, input{manifestName, string(src)}, input{sumName, string(sumLine(sha256.Sum256(src)))})
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range all {
		if err := w.WriteHeader(header(f.name, int64(len(f.content)), at)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, f.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// Shows that forge makes what Writer makes, so that what is refused of it is refused for what was changed.
func TestForge(t *testing.T) {
	src, _ := mustWrite(t, inputs(), manifest())
	if !bytes.Equal(src, forge(t, inputs(), manifest())) {
		t.Error("a forged backup differs from a written one")
	}
}

// Shows that Writer refuses content that does not have its size, and writes nothing after that.
func TestWrongSizes(t *testing.T) {
	for _, size := range []int64{3, 5, -1, MaxControlBytes + 1} {
		w := NewWriter(io.Discard, takenAt)
		first := w.Add(ControlName, size, strings.NewReader("four"))
		if first == nil {
			t.Errorf("%d bytes are taken for four", size)
		}
		if again := w.Add(AuditName, 0, strings.NewReader("")); !errors.Is(again, first) {
			t.Errorf("after an error comes %v", again)
		}
	}
}

// Shows that the header of a file that is too large for the portable form is read back, and only as it was written.
func TestLargeHeader(t *testing.T) {
	for _, size := range []int64{largeBytes - 1, largeBytes, MaxPartitionBytes} {
		var out bytes.Buffer
		if err := tar.NewWriter(&out).WriteHeader(header(PartitionDir+"p1", size, takenAt.Truncate(time.Second))); err != nil {
			t.Fatal(err)
		}
		if h, err := parseHeader(out.Bytes()); err != nil || h.Size != size {
			t.Errorf("%d bytes: %+v, %v", size, h, err)
		}
	}
}

// Shows that a file which changes after it was verified is refused where it is read.
func TestChangedLater(t *testing.T) {
	src, _ := mustWrite(t, inputs(), manifest())
	b, err := Open(bytes.NewReader(src), int64(len(src)))
	if err != nil {
		t.Fatal(err)
	}
	src[bytes.Index(src, []byte("statestate"))] ^= 1
	from, _, err := b.File(PartitionDir + "p2")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(from); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "partitions/p2") {
		t.Errorf("it is read as %v", err)
	}
}

// Shows that the error of the reader below is told as it is.
func TestReaderFails(t *testing.T) {
	src, _ := mustWrite(t, inputs(), manifest())
	broken := errors.New("broken pipe")
	for at := 0; at < len(src); at += 300 {
		r := io.MultiReader(bytes.NewReader(src[:at]), iotest.ErrReader(broken))
		if _, _, err := Verify(r); !errors.Is(err, broken) {
			t.Errorf("at %d: %v", at, err)
		}
	}
}

// Shows that no bytes make a reader fail in another way than by one line of one kind, and that what is taken is a
// backup that Writer makes.
func FuzzReader(f *testing.F) {
	src, _ := mustWrite(f, inputs(), manifest())
	f.Add(src)
	f.Add(src[:len(src)/2])
	f.Add([]byte("hello"))
	for at := 100; at < len(src); at += 700 {
		bad := bytes.Clone(src)
		bad[at] ^= 4
		f.Add(bad)
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		b, err := Open(bytes.NewReader(src), int64(len(src)))
		if err != nil {
			_ = kindOf(t, err)
			return
		}
		var again bytes.Buffer
		w := NewWriter(&again, b.Manifest().TakenAt)
		for _, file := range b.Manifest().Files[1:] {
			from, size, err := b.File(file.Name)
			if err != nil {
				t.Fatal(err)
			}
			if err := w.Add(file.Name, size, from); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := w.Close(b.Manifest()); err != nil {
			t.Fatal(err)
		}
		begin := bytes.Index(src, []byte(manifestName))
		if !bytes.Equal(src[:begin], again.Bytes()[:begin]) {
			t.Error("it is taken, but Writer makes another before the manifest")
		}
	})
}

// kindOf is which of the package's errors it is.
func kindOf(t *testing.T, err error) error {
	t.Helper()
	for _, kind := range []error{ErrForeign, ErrNewer, ErrTruncated, ErrDamaged} {
		if errors.Is(err, kind) {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %q", err)
			}
			return kind
		}
	}
	t.Errorf("of no kind: %v", err)
	return nil
}
